#include "machine.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "forks.h"
#include "store/open.h"

namespace weightwire::python {

Result<std::shared_ptr<Machine>> Machine::Make(std::size_t threads) {
  auto machine = MakeForThisProcess<Machine>();
  WW_TRY(machine->kernels, ChooseKernels());
  if (threads == 0) threads = std::max<std::size_t>(1, std::thread::hardware_concurrency());
  machine->pool = std::make_unique<ThreadPool>(threads);
  return machine;
}

Result<OpenedStore> OpenStoreFor(const std::string& url, std::shared_ptr<Machine> machine,
                                 std::uint64_t bytes_per_second) {
  OpenOptions open;
  open.clock = &machine->clock;
  WrapOptions wrap;
  wrap.clock = &machine->clock;
  wrap.sleeper = &machine->sleeper;
  wrap.random = &machine->store_random;
  wrap.limits.bytes_per_second = bytes_per_second;
  OpenedStore opened;
  opened.machine = std::move(machine);
  WW_TRY(opened.store, OpenStore(url, open, wrap, &opened.counts));
  return opened;
}

}  // namespace weightwire::python
