#include "trainer/data/samples/sample_file.h"

#include <cstring>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "trainer/core/errors.h"

namespace fsdp {
namespace {

constexpr std::string_view kMagic = "fsdpsam1";
constexpr int64_t kHeaderBytes = 64;
constexpr int kLineBits = 40;

template <typename T>
std::string_view BytesOf(std::span<const T> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}

std::string Header(int64_t samples, int64_t tokens) {
  std::string header(kMagic);
  const int64_t counts[] = {samples, tokens};
  header += BytesOf(std::span<const int64_t>(counts));
  header.resize(kHeaderBytes);
  return header;
}

}  // namespace

SampleFileWriter::SampleFileWriter(const std::string& path) : output_(path) {
  output_.Append(Header(0, 0));
}

void SampleFileWriter::Append(std::span<const uint32_t> tokens, size_t file, int64_t line) {
  if (tokens.empty()) throw std::invalid_argument("[SampleFileWriter] a sample of no token");
  output_.Append(BytesOf(tokens));
  begins_.push_back(begins_.back() + std::ssize(tokens));
  lines_.push_back(static_cast<int64_t>(file) << kLineBits | line);
}

void SampleFileWriter::Commit() {
  if (tokens() % 2 != 0) output_.Append(std::string(4, '\0'));
  output_.Append(BytesOf(std::span<const int64_t>(begins_)));
  output_.Append(BytesOf(std::span<const int64_t>(lines_)));
  output_.Overwrite(0, Header(samples(), tokens()));
  output_.Commit();
}

SampleFile::SampleFile(const std::string& path, std::string noun, std::vector<DataFile> inputs,
                       std::string read_as)
    : contents_(path),
      noun_(std::move(noun)),
      inputs_(std::move(inputs)),
      read_as_(std::move(read_as)) {
  const std::string_view bytes = contents_.bytes();
  const int64_t size = std::ssize(bytes);
  if (size < kHeaderBytes || !bytes.starts_with(kMagic)) Fail("is no file of samples");
  int64_t tokens = 0;
  std::memcpy(&samples_, bytes.data() + 8, 8);
  std::memcpy(&tokens, bytes.data() + 16, 8);
  // No product overflows: the file is that large.
  if (samples_ < 1 || tokens < samples_ || tokens > size / 4 || samples_ > size / 16 ||
      size != kHeaderBytes + 4 * (tokens + tokens % 2) + 16 * samples_ + 8) {
    Fail("has " + std::to_string(size) + " bytes, which its header does not say");
  }
  tokens_ = reinterpret_cast<const uint32_t*>(bytes.data() + kHeaderBytes);
  begins_ = reinterpret_cast<const int64_t*>(tokens_ + tokens + tokens % 2);
  lines_ = begins_ + samples_ + 1;
  bool good = begins_[0] == 0 && begins_[samples_] == tokens;
  for (int64_t i = 0; i < samples_; ++i) {
    good &= begins_[i] < begins_[i + 1] && lines_[i] >= 0 &&
            lines_[i] >> kLineBits < std::ssize(inputs_);
  }
  if (!good) Fail("contradicts itself");
  contents_.CheckIntact();
}

void SampleFile::Fail(const std::string& what) const {
  throw DataError("data: " + contents_.path() + ": " + what);
}

int64_t SampleFile::Targets(int64_t i, int64_t n) const {
  const uint32_t* const at = tokens_ + Begin(i);
  int64_t count = 0;
  for (int64_t k = 1; k < n; ++k) count += at[k] >> 31;
  contents_.CheckIntact();
  return count;
}

void SampleFile::Read(int64_t i, std::span<int32_t> tokens, std::span<float> weights) const {
  const uint32_t* const at = tokens_ + Begin(i);
  const size_t n = tokens.size();
  for (size_t k = 0; k < n; ++k) tokens[k] = static_cast<int32_t>(at[k] & ~kTargetBit);
  for (size_t k = 0; k + 1 < n; ++k) weights[k] = static_cast<float>(at[k + 1] >> 31);
  weights[n - 1] = 0;
  contents_.CheckIntact();
}

std::string SampleFile::Describe() const { return AndMoreFiles(inputs_[0].path, inputs_.size()); }

std::string SampleFile::Where(int64_t i) const {
  const int64_t line = lines_[i];
  return inputs_[static_cast<size_t>(line >> kLineBits)].path + ", line " +
         std::to_string(line & ((int64_t{1} << kLineBits) - 1));
}

TokenPlace SampleFile::PlaceOf(int64_t i, int64_t token) const {
  return {Where(i) + ", token " + std::to_string(token)};
}

}  // namespace fsdp
