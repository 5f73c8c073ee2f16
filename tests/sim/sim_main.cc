// One history, or a range of them, from the command line: ./dev sim --seed N
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "sim/history.h"

namespace {

int Usage() {
  std::fprintf(stderr,
               "usage: sim [--ranks] --seed N          one history, line by line\n"
               "       sim [--ranks] --seeds FROM TO   many, saying only what goes wrong\n"
               "--ranks: the publisher is several ranks\n");
  return 2;
}

std::uint64_t Number(const char* text) { return std::strtoull(text, nullptr, 10); }

}  // namespace

int main(int argc, char** argv) {
  const bool ranks = argc > 1 && std::string_view(argv[1]) == "--ranks";
  const auto run = ranks ? weightwire::sim::RunRankHistory : weightwire::sim::RunHistory;
  argc -= ranks ? 1 : 0;
  argv += ranks ? 1 : 0;
  const std::string_view what = argc > 1 ? argv[1] : "";
  if (what == "--seed" && argc == 3) {
    const auto outcome = run({.seed = Number(argv[2]), .planted = {}, .show = true});
    std::printf("%llu effects, %llu versions, trace %s\n%s\n", static_cast<unsigned long long>(outcome.effects),
                static_cast<unsigned long long>(outcome.versions), outcome.trace_hash.c_str(),
                outcome.violation.has_value() ? ("VIOLATION: " + *outcome.violation).c_str() : "all is well");
    return outcome.violation.has_value() ? 1 : 0;
  }
  if (what == "--seeds" && argc == 4) {
    int bad = 0;
    for (std::uint64_t seed = Number(argv[2]); seed < Number(argv[3]); ++seed) {
      const auto outcome = run({.seed = seed, .planted = {}, .show = false});
      if (!outcome.violation.has_value()) continue;
      ++bad;
      std::printf("seed %llu: %s\n", static_cast<unsigned long long>(seed), outcome.violation->c_str());
    }
    std::printf("%d bad\n", bad);
    return bad == 0 ? 0 : 1;
  }
  return Usage();
}
