#include "codec/decode/dense_tile.h"

#include "codec/format/order.h"
#include "codec/format/rans.h"
#include "codec/format/step_coding.h"
#include "codec/format/units.h"

namespace weightwire {

bool DecodeDenseTile(std::span<const std::uint8_t> stream, const std::uint8_t* base_units, std::uint32_t count,
                     int unit_bytes, const ExpandedTables& tables, std::uint8_t* new_units) {
  RansDecoder coder(stream);
  return WithUnit(unit_bytes, [&]<typename Unit>() {
    for (std::uint32_t i = 0; i < count; ++i) {
      const Unit base = LoadUnit<Unit>(base_units, i);
      const std::uint32_t field = static_cast<std::uint32_t>(base >> tables.rule.shift) & tables.rule.FieldMask();
      const std::uint32_t unit_class = tables.class_of_field[field];
      if (((tables.usable_classes >> unit_class) & 1) == 0) return false;
      std::size_t at = unit_class * tables.stride;
      while (tables.lasts[at] < coder.Peek()) ++at;
      const SymbolSlot& slot = tables.slots[at];
      coder.Pop(slot.event);
      Unit unit = base;
      if (slot.symbol != 0) {
        const std::uint64_t raw = PopRawBits(coder, static_cast<int>(slot.extra_bits) + 1);
        unit = Stepped<Unit>(base, {(raw & 1) != 0, slot.least_magnitude + (raw >> 1)}, tables.rule.order);
      }
      StoreUnit<Unit>(new_units, i, unit);
    }
    return coder.Finished();
  });
}

}  // namespace weightwire
