// What a command computes with.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <thread>

#include "base/result.h"
#include "base/threads.h"
#include "codec/kernels/kernels.h"

namespace weightwire {

// The kernels for this processor (or WEIGHTWIRE_ISA), and a pool of threads. Movable.
struct Compute {
  const Kernels* kernels;
  std::unique_ptr<ThreadPool> pool;

  // `threads` 0: as many as the processor has.
  static Result<Compute> Make(std::size_t threads) {
    WW_TRY(const Kernels* kernels, ChooseKernels());
    if (threads == 0) threads = std::max<std::size_t>(1, std::thread::hardware_concurrency());
    return Compute{kernels, std::make_unique<ThreadPool>(threads)};
  }
};

}  // namespace weightwire
