// WW_CHECK(condition): an invariant of our own code. A failure is a bug in weightwire, never bad input,
// and aborts with the place: going on could write wrong weights.
#pragma once

#include <cstdio>
#include <cstdlib>

#define WW_CHECK(condition)                                                                                \
  do {                                                                                                     \
    if (!(condition)) [[unlikely]] {                                                                       \
      std::fprintf(stderr, "weightwire: broken invariant at %s:%d: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                                        \
    }                                                                                                      \
  } while (false)
