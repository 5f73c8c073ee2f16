#include "cli/vllm_server.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <fstream>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "base/bytes.h"
#include "cli/policy.h"

namespace weightwire {
namespace {

using Json = nlohmann::json;

constexpr std::uint64_t kMaxConfigBytes = std::uint64_t{1} << 20;

HttpOptions PatientOptions() {
  HttpOptions options;
  options.request_timeout = kVllmTimeout;
  options.stall_timeout = kVllmTimeout;
  return options;
}

// An empty object if the text is not a JSON object.
Json ParseObject(std::string_view text) {
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  return json.is_object() ? json : Json::object();
}

// The text at a path of keys; empty if there is none.
std::string TextAt(const Json& json, std::initializer_list<const char*> keys) {
  const Json* at = &json;
  for (const char* key : keys) {
    const auto found = at->is_object() ? at->find(key) : at->end();
    if (found == at->end()) return "";
    at = &*found;
  }
  return at->is_string() ? at->get<std::string>() : "";
}

Json ConfigOf(const std::filesystem::path& mirror) {
  std::ifstream file(mirror / "config.json", std::ios::binary);
  std::string text(kMaxConfigBytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  return ParseObject(text);
}

// Returns true if the checkpoint's input and output embeddings may be one tensor. If the configuration does not tell,
// the model's class decides, which this program does not know.
bool MayBeTied(const Json& config) {
  const auto tied = config.find("tie_word_embeddings");
  if (tied != config.end() && tied->is_boolean()) return tied->get<bool>();
  const auto text = config.find("text_config");
  return text == config.end() || !text->is_object() || MayBeTied(*text);
}

// The same label means the same weights, also across runs.
std::string LabelOf(const Held& held) { return fmt::format("{}-{}", held.version, ToHex(held.state).substr(0, 16)); }

// Returns true for a mixture of experts. A model of several parts describes its text part in an object of its own.
bool HasExperts(const Json& config) {
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"}) {
    const auto count = config.find(key);
    if (count != config.end() && count->is_number_integer() && count->get<std::int64_t>() > 0) return true;
  }
  const auto text = config.find("text_config");
  return text != config.end() && text->is_object() && HasExperts(*text);
}

}  // namespace

VllmServer::VllmServer(std::string_view url) : url_(url), http_(PatientOptions()) {
  while (url_.ends_with('/')) url_.pop_back();
}

Result<bool> VllmServer::UpdateTo(const Held& held, const std::filesystem::path& mirror) {
  WW_TRY(const std::string label, Label());
  if (label == LabelOf(held)) {
    if (!std::exchange(is_known_to_run_, true)) {
      // An earlier process may have ended before it resumed the server.
      WW_TRY(const HttpAnswer resumed, Ask("POST", "/resume", ""));
      static_cast<void>(resumed);
    }
    return false;
  }
  WW_RETURN_IF_ERROR(CheckExact(mirror));
  WW_TRY(const HttpAnswer paused, Ask("POST", "/pause?mode=keep", ""));
  if (paused.status != 200) {
    return Error(ErrorCode::kUnavailable,
                 fmt::format("the vLLM server at {} cannot be paused now (status {})", url_, paused.status));
  }
  if (const Status loaded = Reload(LabelOf(held), mirror); !loaded.ok()) {
    return Error(ErrorCode::kIo,
                 fmt::format("the vLLM server at {} could not load version {}: {}; it stays paused, restart it", url_,
                             held.version, loaded.error().message()));
  }
  is_known_to_run_ = true;
  return true;
}

Result<HttpAnswer> VllmServer::Ask(const std::string& method, const std::string& path, const std::string& body) {
  HttpRequest request;
  request.method = method;
  request.url = url_ + path;
  // Some routes answer without reading the body, and the server would take the rest of it for the next request. So no
  // needless body is sent, and no connection is used twice.
  request.headers = {"connection: close"};
  if (!body.empty()) request.headers.emplace_back("content-type: application/json");
  request.body = BytesOf(body);
  request.may_be_sent_twice = method == "GET";
  request.max_body_bytes = std::uint64_t{16} << 20;
  return http_.Perform(request);
}

Result<std::string> VllmServer::Label() {
  WW_TRY(const HttpAnswer answer, Ask("GET", "/weight_info", ""));
  if (answer.status == 404) {
    return Error(
        ErrorCode::kUnsupported,
        fmt::format("the vLLM server at {} has no routes for weights; start it with VLLM_SERVER_DEV_MODE=1, or "
                    "with the plugin (docs/vllm.md)",
                    url_));
  }
  std::string label = TextAt(ParseObject(answer.BodyText()), {"weight_version"});
  if (answer.status != 200 || label.empty()) {
    return Error(ErrorCode::kUnavailable,
                 fmt::format("the vLLM server at {} does not tell what it holds (status {})", url_, answer.status));
  }
  return label;
}

// On CPUs a reload of tied weights does not update the packed copy that the output embeddings keep, and reloaded
// experts give wrong answers.
Status VllmServer::CheckExact(const std::filesystem::path& mirror) {
  const Json config = ConfigOf(mirror);
  const char* what = MayBeTied(config) ? "tied weights" : HasExperts(config) ? "experts" : nullptr;
  if (what == nullptr) return Ok();
  WW_TRY(const HttpAnswer answer, Ask("GET", "/server_info?config_format=json", ""));
  const Json info = ParseObject(answer.BodyText());
  const std::string device = TextAt(info, {"vllm_config", "device_config", "device_type"});
  if (answer.status != 200 || device.empty()) {
    return Error(ErrorCode::kUnavailable,
                 fmt::format("the vLLM server at {} does not tell what it runs on (status {})", url_, answer.status));
  }
  if (device == "cpu") {
    return Error(
        ErrorCode::kUnsupported,
        fmt::format("the vLLM server at {} runs on a CPU, where {} cannot be reloaded exactly; it is unchanged", url_,
                    what));
  }
  return Ok();
}

Status VllmServer::Reload(const std::string& label, const std::filesystem::path& mirror) {
  std::error_code ignored;
  const std::string path = std::filesystem::absolute(mirror, ignored).lexically_normal().string();
  const std::pair<const char*, std::optional<Json>> steps[] = {
      {"/collective_rpc", Json{{"method", "reload_weights"}, {"kwargs", {{"weights_path", path}}}}},
      {"/reset_prefix_cache?reset_running_requests=true&reset_external=true", std::nullopt},
      {"/update_weight_version", Json{{"new_version", label}}},
      {"/resume", std::nullopt},
  };
  for (const auto& [route, body] : steps) {
    const std::string text =
        body.has_value() ? body->dump(-1, ' ', false, Json::error_handler_t::replace) : std::string();
    WW_TRY(const HttpAnswer answer, Ask("POST", route, text));
    const Json said = ParseObject(answer.BodyText());
    const auto success = said.find("success");
    if (answer.status != 200 || (success != said.end() && *success != true)) {
      return Error(ErrorCode::kIo, fmt::format("it answered {} with status {}", route, answer.status));
    }
  }
  return Ok();
}

}  // namespace weightwire
