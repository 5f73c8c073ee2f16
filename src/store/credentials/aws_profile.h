// The AWS tools' shared files: ~/.aws/credentials and ~/.aws/config, with profiles.
//
// AWS_PROFILE chooses the profile (default: "default"), AWS_SHARED_CREDENTIALS_FILE and AWS_CONFIG_FILE the files. A
// file that is not there is as good as empty.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/environment.h"
#include "base/result.h"

namespace weightwire {

// Values may be secret: never print one but those named here.
class AwsProfile {
 public:
  // kInvalidArgument when a file cannot be read, or when AWS_PROFILE names a profile that is in neither.
  static Result<AwsProfile> Load(const Environment& environment);

  [[nodiscard]] const std::string& name() const { return name_; }
  // The value of a setting. What is in the credentials file counts more.
  [[nodiscard]] std::optional<std::string> Find(std::string_view setting) const;

 private:
  std::string name_;
  std::map<std::string, std::string, std::less<>> settings_;
};

}  // namespace weightwire
