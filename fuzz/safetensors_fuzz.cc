// The safetensors reader on arbitrary bytes. What it accepts must keep its promises, and survive being written again.
#include <algorithm>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "support/safetensors_file.h"
#include "tensor/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace weightwire;
  const std::span<const std::uint8_t> file(data, size);
  const auto view = SafetensorsView::Parse(file);
  if (!view.ok()) return 0;

  std::size_t data_bytes = 0;
  for (const TensorView& tensor : view.value().tensors()) {
    WW_CHECK(tensor.bytes.size() == CheckedByteSize(tensor.spec).value());
    WW_CHECK(view.value().Find(tensor.spec.name) == &tensor);
    data_bytes += tensor.bytes.size();
  }
  WW_CHECK(data_bytes <= size);

  const auto written = testing::WriteSafetensors(view.value().tensors(), view.value().metadata());
  WW_CHECK(written.ok());
  const auto again = SafetensorsView::Parse(written.value());
  WW_CHECK(again.ok());
  WW_CHECK(again.value().metadata() == view.value().metadata());
  WW_CHECK(std::equal(again.value().tensors().begin(), again.value().tensors().end(), view.value().tensors().begin(),
                      view.value().tensors().end(), [](const TensorView& a, const TensorView& b) {
                        return a.spec == b.spec && std::equal(a.bytes.begin(), a.bytes.end(), b.bytes.begin());
                      }));
  return 0;
}
