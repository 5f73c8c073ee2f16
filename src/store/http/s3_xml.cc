#include "store/http/s3_xml.h"

#include <fmt/format.h>

#include <pugixml.hpp>
#include <sstream>

#include "store/http/decimal.h"
#include "store/http/times.h"

namespace weightwire {
namespace {

constexpr std::size_t kMaxMessageBytes = 300;

// Services put names of all namespaces there, so only the local part of a name counts.
bool Load(std::string_view xml, std::string_view root_name, pugi::xml_document* document, pugi::xml_node* root) {
  if (!document->load_buffer(xml.data(), xml.size(), pugi::parse_default, pugi::encoding_utf8)) return false;
  *root = document->document_element();
  return std::string_view(root->name()) == root_name;
}

std::string Printable(std::string_view text) {
  std::string printable;
  for (const char c : text.substr(0, kMaxMessageBytes)) {
    if (c >= ' ' && c != '\x7f') printable += c;
  }
  return printable;
}

Error Damaged(std::string_view what) {
  return {ErrorCode::kCorrupt, fmt::format("the store's answer to {} is not understood", what)};
}

}  // namespace

Result<S3Page> ParseS3Page(std::string_view xml) {
  pugi::xml_document document;
  pugi::xml_node root;
  if (!Load(xml, "ListBucketResult", &document, &root)) return Damaged("a list");
  S3Page page;
  for (const pugi::xml_node entry : root.children("Contents")) {
    const auto size = ParseDecimal(entry.child_value("Size"));
    const auto time = ParseIsoTime(entry.child_value("LastModified"));
    if (!size || !time) return Damaged("a list");
    page.objects.push_back({entry.child_value("Key"), *size, *time});
  }
  for (const pugi::xml_node entry : root.children("CommonPrefixes")) {
    page.folders.emplace_back(entry.child_value("Prefix"));
  }
  page.truncated = std::string_view(root.child_value("IsTruncated")) == "true";
  return page;
}

S3Error ParseS3Error(std::string_view xml) {
  pugi::xml_document document;
  pugi::xml_node root;
  if (Load(xml, "ErrorResponse", &document, &root)) root = root.child("Error");  // of the token service
  if (std::string_view(root.name()) != "Error") return {};
  return {Printable(root.child_value("Code")), Printable(root.child_value("Message"))};
}

Result<std::string> ParseS3UploadId(std::string_view xml) {
  pugi::xml_document document;
  pugi::xml_node root;
  if (!Load(xml, "InitiateMultipartUploadResult", &document, &root)) return Damaged("an upload");
  std::string id = root.child_value("UploadId");
  if (id.empty()) return Damaged("an upload");
  return id;
}

std::string WriteS3PartList(const std::vector<std::string>& etags) {
  pugi::xml_document document;
  pugi::xml_node root = document.append_child("CompleteMultipartUpload");
  for (std::size_t i = 0; i < etags.size(); ++i) {
    pugi::xml_node part = root.append_child("Part");
    part.append_child("PartNumber").text().set(static_cast<unsigned>(i + 1));
    part.append_child("ETag").text().set(etags[i].c_str());
  }
  std::ostringstream out;
  document.save(out, "", pugi::format_raw | pugi::format_no_declaration);
  return out.str();
}

}  // namespace weightwire
