// The encoder's kernels once per instruction set, through highway. A source of its own beside kernels_simd.cc, which
// takes long enough to compile.
#include "codec/kernels/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/kernels/encode_kernels_simd.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, as highway demands.
#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <type_traits>

#include "base/bytes.h"
#include "codec/format/units.h"
#include "codec/format/waiting.h"
#include "codec/kernels/convert_scalar.h"
#include "codec/kernels/encode_kernels.h"
#include "codec/kernels/kernels.h"
#include "codec/kernels/sparse_events.h"

// The baseline without vectors is encode_kernels_scalar.cc.
#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
HWY_BEFORE_NAMESPACE();
namespace weightwire {
namespace HWY_NAMESPACE {
namespace {

#include "codec/kernels/simd_common-inl.h"
#include "codec/kernels/vectors-inl.h"
// One idea each.
#include "codec/kernels/bf16_of_floats-inl.h"
#include "codec/kernels/count_fields-inl.h"
#include "codec/kernels/make_events-inl.h"
#include "codec/kernels/push_events-inl.h"
#include "codec/kernels/scan-inl.h"

}  // namespace

const EncodeKernels* GetEncodeKernels() {
  static constexpr EncodeKernels kKernels = {CountFields, Scan, MakeEvents, PushEvents};
  return &kKernels;
}

}  // namespace HWY_NAMESPACE
}  // namespace weightwire
HWY_AFTER_NAMESPACE();
#endif  // not HWY_SCALAR
