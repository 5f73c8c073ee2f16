// Result<T>: a T or an Error. Status: success or an Error.
//
//   Result<Layout> ReadLayout(...);
//   WW_TRY(auto layout, ReadLayout(...));   // returns the Error to our own caller, or binds the value
//   WW_RETURN_IF_ERROR(file.Sync());
//
// Access to the wrong side is a bug and aborts.
#pragma once

#include <optional>
#include <utility>
#include <variant>

#include "base/check.h"
#include "base/error.h"

namespace weightwire {

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT(google-explicit-constructor)
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT(google-explicit-constructor)

  [[nodiscard]] bool ok() const { return state_.index() == 0; }
  [[nodiscard]] const Error& error() const {
    WW_CHECK(!ok());
    return std::get<1>(state_);
  }
  [[nodiscard]] T& value() & {
    WW_CHECK(ok());
    return std::get<0>(state_);
  }
  [[nodiscard]] const T& value() const& {
    WW_CHECK(ok());
    return std::get<0>(state_);
  }
  [[nodiscard]] T&& value() && {
    WW_CHECK(ok());
    return std::get<0>(std::move(state_));
  }

 private:
  std::variant<T, Error> state_;
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Error error) : error_(std::move(error)) {}  // NOLINT(google-explicit-constructor)

  [[nodiscard]] bool ok() const { return !error_.has_value(); }
  [[nodiscard]] const Error& error() const {
    WW_CHECK(!ok());
    return *error_;
  }

 private:
  std::optional<Error> error_;
};

inline Status Ok() { return {}; }

}  // namespace weightwire

#define WW_CONCAT_INNER(a, b) a##b
#define WW_CONCAT(a, b) WW_CONCAT_INNER(a, b)

#define WW_RETURN_IF_ERROR(expression)                    \
  do {                                                    \
    if (auto ww_status = (expression); !ww_status.ok()) { \
      return ww_status.error();                           \
    }                                                     \
  } while (false)

#define WW_TRY(declaration, expression) WW_TRY_IMPL(WW_CONCAT(ww_result_, __LINE__), declaration, expression)
#define WW_TRY_IMPL(result, declaration, expression) \
  auto result = (expression);                        \
  if (!result.ok()) return result.error();           \
  declaration = std::move(result).value()
