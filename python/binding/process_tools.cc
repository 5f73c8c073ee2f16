#include "process_tools.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "forks.h"
#include "store/open.h"

namespace weightwire::python {

Result<std::shared_ptr<ProcessTools>> ProcessTools::Make(std::size_t threads) {
  auto process = MakeForThisProcess<ProcessTools>();
  WW_TRY(process->kernels, ChooseKernels());
  if (threads == 0) threads = std::max<std::size_t>(1, std::thread::hardware_concurrency());
  process->pool = std::make_unique<ThreadPool>(threads);
  return process;
}

Result<OpenedStore> OpenStoreFor(const std::string& url, std::shared_ptr<ProcessTools> process,
                                 std::uint64_t bytes_per_second) {
  OpenOptions open;
  open.clock = &process->clock;
  open.sleeper = &process->sleeper;
  open.random = &process->store_random;
  open.limits.bytes_per_second = bytes_per_second;
  OpenedStore opened;
  opened.process = std::move(process);
  WW_TRY(opened.store, OpenStore(url, open, &opened.counts));
  return opened;
}

}  // namespace weightwire::python
