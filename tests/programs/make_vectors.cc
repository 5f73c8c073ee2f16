// make_vectors DIRECTORY: writes the golden files of spec/vectors. Run by ./dev vectors, when the format or the choices
// of the encoder have changed on purpose.
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "codec/vectors.h"

namespace {

void Write(const std::filesystem::path& path, std::span<const std::uint8_t> bytes) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

}  // namespace

int main(int argc, char** argv) {
  using namespace weightwire::testing;
  if (argc != 2) {
    std::fprintf(stderr, "usage: make_vectors DIRECTORY\n");
    return 1;
  }
  const std::filesystem::path directory = argv[1];
  std::filesystem::remove_all(directory / "good");
  std::filesystem::remove_all(directory / "bad");
  for (const GoodVector& good : GoodVectors().Make()) {
    Write(directory / "good" / good.name / "base.safetensors", good.base);
    Write(directory / "good" / good.name / "delta.safetensors", good.delta);
    Write(directory / "good" / good.name / "expected.safetensors", good.expected);
  }
  for (const BadVector& bad : BadVectors().Make()) {
    const std::string word = bad.expected + "\n";
    Write(directory / "bad" / bad.name / "base.safetensors", bad.base);
    Write(directory / "bad" / bad.name / "delta.safetensors", bad.delta);
    Write(directory / "bad" / bad.name / "expected.txt",
          {reinterpret_cast<const std::uint8_t*>(word.data()), word.size()});
  }
  return 0;
}
