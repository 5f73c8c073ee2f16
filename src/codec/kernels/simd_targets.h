// The instruction sets that kernels are compiled for. Before anything of highway, in every file with vectors.
//
// What highway knows beside these would only take time to compile (SSSE3), or has vectors whose size the compiler does
// not know, which the lanes need (SVE).
#pragma once

// AVX-512 twice: what all who have it have, and with what came later, such as VBMI.
#define HWY_WANT_AVX3_DL
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)

// Whether the code that is being compiled may use AVX-512.
#define WW_AVX512 (HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL)
