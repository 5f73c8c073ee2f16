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
#include "codec/kernels/encode_events.h"
#include "codec/kernels/encode_kernels.h"
#include "codec/kernels/kernels.h"

// The baseline without vectors is encode_kernels_scalar.cc.
#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
HWY_BEFORE_NAMESPACE();
namespace weightwire {
namespace HWY_NAMESPACE {
namespace {

#include "codec/kernels/simd_common-inl.h"
#include "codec/kernels/simd_rates-inl.h"
// One idea each.
#include "codec/kernels/convert_bf16-inl.h"
#include "codec/kernels/encode_count_fields-inl.h"
#include "codec/kernels/encode_events-inl.h"
#include "codec/kernels/encode_push-inl.h"
#include "codec/kernels/encode_scan-inl.h"

}  // namespace

const EncodeKernels* GetEncodeKernels() {
  static constexpr EncodeKernels kKernels = {CountFields, Scan, MakeEvents, PushEvents};
  return &kKernels;
}

}  // namespace HWY_NAMESPACE
}  // namespace weightwire
HWY_AFTER_NAMESPACE();
#endif  // not HWY_SCALAR
