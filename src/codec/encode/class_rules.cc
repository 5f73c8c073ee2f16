#include "codec/encode/class_rules.h"

#include <array>

namespace weightwire {

std::span<const ClassRule> CandidateClassRules(DType dtype) {
  constexpr Order kInt = Order::kInteger;
  constexpr Order kFloat = Order::kSignMagnitude;
  static constexpr std::array<ClassRule, 4> kRules8 = {
      {{3, 4, 0, kFloat}, {2, 5, 0, kFloat}, {4, 4, 0, kInt}, {0, 0, 0, kInt}}};
  static constexpr std::array<ClassRule, 3> kRules16 = {{{7, 8, 0, kFloat}, {10, 5, 0, kFloat}, {0, 0, 0, kInt}}};
  static constexpr std::array<ClassRule, 2> kRules32 = {{{23, 8, 0, kFloat}, {0, 0, 0, kInt}}};
  static constexpr std::array<ClassRule, 1> kRules64 = {{{55, 8, 0, kFloat}}};
  static constexpr std::array<ClassRule, 1> kOneClass = {{{0, 0, 0, kInt}}};
  const auto one = [](auto& rules, std::size_t k) { return std::span<const ClassRule>(rules).subspan(k, 1); };
  switch (dtype) {
    case DType::kBF16:
      return one(kRules16, 0);
    case DType::kF16:
      return one(kRules16, 1);
    case DType::kF32:
      return one(kRules32, 0);
    case DType::kF64:
      return kRules64;
    case DType::kF8E4M3:
    case DType::kF8E4M3Fnuz:
      return one(kRules8, 0);
    case DType::kF8E5M2:
    case DType::kF8E5M2Fnuz:
      return one(kRules8, 1);
    case DType::kU8:
    case DType::kI8:
      return kRules8;
    case DType::kU16:
    case DType::kI16:
      return kRules16;
    case DType::kU32:
    case DType::kI32:
      return kRules32;
    default:
      return kOneClass;
  }
}

}  // namespace weightwire
