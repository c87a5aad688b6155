#include "trainer/observe/record_lines.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "trainer/core/read_file.h"

namespace fsdp {
namespace {

class Lines {
 public:
  explicit Lines(const std::function<void(const RecordLine&)>& take) : take_(take) {}

  void Add(std::string_view block) {
    while (!block.empty()) {
      if (zeros_ > 0) {
        const size_t zeros = std::min(block.find_first_not_of('\0'), block.size());
        zeros_ += static_cast<int64_t>(zeros);
        block.remove_prefix(zeros);
        if (block.empty()) return;
        EndZeros();
        if (block.front() != '\n') continue;
        block.remove_prefix(1);
        ++number_;
        continue;
      }
      std::string_view line = block.substr(0, block.find('\n'));
      const bool is_line = line.size() < block.size();
      const size_t zero = line.find('\0');
      line = line.substr(0, zero);
      // One byte more than a record has says that it is none.
      line_ += line.substr(0, static_cast<size_t>(kLongestRecord + 1) - line_.size());
      block.remove_prefix(line.size());
      if (zero != std::string_view::npos) {
        if (!line_.empty()) EndLine(true);
        zeros_ = 1;
        block.remove_prefix(1);
      } else if (is_line) {
        EndLine(true);
        block.remove_prefix(1);
        ++number_;
      }
    }
  }
  void AddZeros(int64_t zeros) { zeros_ += zeros; }  // Behind a block of zeros.
  void Finish() {
    if (zeros_ > 0) EndZeros();
    if (!line_.empty()) EndLine(false);
  }

 private:
  void EndLine(bool ended) {
    take_({.text = line_, .ended = ended, .number = number_});
    line_.clear();
  }
  void EndZeros() {
    take_({.text = "", .zeros = zeros_, .ended = true, .number = number_});
    zeros_ = 0;
  }

  const std::function<void(const RecordLine&)>& take_;
  std::string line_;
  int64_t zeros_ = 0, number_ = 1;
};

}  // namespace

void ReadRecordLines(const std::string& path, const std::function<void(const RecordLine&)>& take) {
  FileBlocks blocks(path);
  Lines lines(take);
  for (std::string_view block = blocks.Next(); !block.empty(); block = blocks.Next()) {
    lines.Add(block);
    lines.AddZeros(blocks.skipped());
  }
  lines.Finish();
}

std::string EndOfRecords(const std::string& path) {
  constexpr std::streamoff kBytes = 64 << 10;
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return "";
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const std::streamoff size = file.tellg();
  if (size <= 0) return "";
  std::string text(static_cast<size_t>(std::min(size, kBytes)), '\0');
  file.seekg(size - static_cast<std::streamoff>(text.size()));
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(std::max<std::streamsize>(0, file.gcount())));
  return text;
}

}  // namespace fsdp
