// Whether a sanitizer is built in: they are slow, and look for other things than what histories show.
#pragma once

namespace weightwire::sim {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kIsSanitized = true;
#else
inline constexpr bool kIsSanitized = false;
#endif

}  // namespace weightwire::sim
