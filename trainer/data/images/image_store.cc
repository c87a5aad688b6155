#include "trainer/data/images/image_store.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <exception>
#include <filesystem>
#include <mutex>
#include <set>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "trainer/core/errors.h"
#include "trainer/core/philox.h"
#include "trainer/core/start_thread.h"
#include "trainer/core/units.h"
#include "trainer/core/utf8.h"
#include "trainer/data/decompress.h"
#include "trainer/data/images/image_pixels.h"
#include "trainer/data/text/file_format.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kCifarPixels = 3 * 32 * 32;

[[noreturn]] void Refuse(const std::string& file, const std::string& what) {
  throw DataError("data: " + PrintableName(file) + ": " + what);
}

uint32_t BigEndian(std::string_view bytes, size_t at) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<uint8_t>(bytes[at + i]);
  return value;
}

// The header of an IDX file of bytes.
struct IdxHeader {
  std::vector<int64_t> sizes;  // The first is the number of items. Empty: it is no IDX file.
  int64_t bytes = 0;           // The header's.
  double contents = 0;         // Bytes behind it.
  std::string text;            // "60000 x 28 x 28".
};

IdxHeader ReadIdxHeader(const FileContents& file) {
  const std::string_view bytes = file.bytes();
  IdxHeader header;
  if (bytes.size() < 4 || BigEndian(bytes, 0) >> 8 != 8) return header;
  const auto rank = static_cast<size_t>(static_cast<uint8_t>(bytes[3]));
  if (rank < 1 || rank > 4 || bytes.size() < 4 + 4 * rank) {
    Refuse(file.path(), "is no IDX file of labels or images: " + std::to_string(rank) +
                            " dimensions, or cut off");
  }
  header.bytes = static_cast<int64_t>(4 + 4 * rank);
  header.contents = 1;
  for (size_t i = 0; i < rank; ++i) {
    header.sizes.push_back(BigEndian(bytes, 4 + 4 * i));
    header.contents *= static_cast<double>(header.sizes.back());
    header.text += (i == 0 ? "" : " x ") + std::to_string(header.sizes.back());
  }
  if (std::find(header.sizes.begin() + 1, header.sizes.end(), 0) != header.sizes.end()) {
    Refuse(file.path(), "holds nothing: its header says " + header.text);
  }
  return header;
}

// The sizes in an IDX file of bytes, whose first is the number of items; empty: it is none.
std::vector<int64_t> IdxSizes(const FileContents& file) {
  const IdxHeader header = ReadIdxHeader(file);
  const int64_t behind = std::ssize(file.bytes()) - header.bytes;
  if (!header.sizes.empty() && header.contents != static_cast<double>(behind)) {
    Refuse(file.path(), "has " + std::to_string(behind) +
                            " bytes behind its header, which says that there are " + header.text);
  }
  return header.sizes;
}

// A compressed file that would become larger than its header says is refused before it has. CIFAR's
// binaries have no header; the largest of them has 154 MB.
FileContents OpenPacked(const std::string& path) {
  if (!IsCompressed(path)) return FileContents(path);
  const IdxHeader header = ReadIdxHeader(FileContents(path, FileContents::As::kBegin));
  constexpr size_t kMostOfCifar = size_t{1} << 30;
  if (header.sizes.empty()) {
    return {path, kMostOfCifar, "and no header that says so: decompress it"};
  }
  const double all = static_cast<double>(header.bytes) + header.contents;
  const auto most = static_cast<size_t>(std::min(all, std::pow(2.0, 62)));
  return {path, most, "which is what its header says: " + header.text};
}

// Images of one file that holds many.
class PackedImages {
 public:
  explicit PackedImages(FileContents file) : file_(std::move(file)) {}

  // `labels`: of an IDX file.
  void OpenIdx(const std::vector<int64_t>& sizes, FileContents labels) {
    const std::vector<int64_t> of = IdxSizes(labels);
    if (of.size() != 1) {
      const std::string other = FindOtherFormat(labels.path(), labels.bytes(), "labels as IDX");
      Refuse(labels.path(), other.empty() ? "is no IDX file of labels" : other);
    }
    if (of[0] != sizes[0]) {
      Refuse(labels.path(), "has " + Counted(of[0], "label") + ", and " +
                                PrintableName(file_.path()) + " " + Counted(sizes[0], "image"));
    }
    count_ = sizes[0];
    height_ = sizes[1];
    width_ = sizes[2];
    channels_ = sizes.size() > 3 ? sizes[3] : 1;
    pixels_at_ = static_cast<int64_t>(4 + 4 * sizes.size());
    stride_ = height_ * width_ * channels_;
    label_file_ = std::make_unique<FileContents>(std::move(labels));
    label_at_ = 8;
    label_stride_ = 1;
  }
  // Records of a label, or of a coarse and a fine one, and of three planes of 32 x 32 pixels.
  bool OpenCifar() {
    const auto bytes = std::ssize(file_.bytes());
    for (const int64_t labels : {1, 2}) {
      const int64_t record = labels + kCifarPixels;
      if (bytes % record != 0) continue;
      count_ = bytes / record;
      height_ = width_ = 32;
      channels_ = 3;
      planes_ = true;
      pixels_at_ = labels;
      stride_ = label_stride_ = record;
      label_at_ = labels - 1;
      return true;
    }
    return false;
  }

  const FileContents& file() const { return file_; }
  const FileContents* labels() const { return label_file_.get(); }
  int64_t count() const { return count_; }
  int32_t Label(int64_t i) const {
    const std::string_view from = label_file_ ? label_file_->bytes() : file_.bytes();
    return static_cast<uint8_t>(from[static_cast<size_t>(label_at_ + i * label_stride_)]);
  }
  ImagePixels Size() const { return {height_, width_, channels_}; }
  void Read(int64_t i, ImagePixels& pixels) const {
    pixels.height = height_;
    pixels.width = width_;
    pixels.channels = channels_;
    const int64_t plane = height_ * width_, n = plane * channels_;
    pixels.bytes.resize(static_cast<size_t>(n));
    const auto* const from =
        reinterpret_cast<const uint8_t*>(file_.bytes().data()) + pixels_at_ + i * stride_;
    if (!planes_) {
      std::copy_n(from, n, pixels.bytes.begin());
    } else {
      for (int64_t at = 0; at < n; ++at) {
        pixels.bytes[static_cast<size_t>(at)] = from[at % channels_ * plane + at / channels_];
      }
    }
    file_.CheckIntact();
  }

 private:
  FileContents file_;
  std::unique_ptr<const FileContents> label_file_;  // Null: in `file_`.
  int64_t count_ = 0, height_ = 0, width_ = 0, channels_ = 0;
  int64_t pixels_at_ = 0, stride_ = 0;  // Bytes, as the next.
  int64_t label_at_ = 0, label_stride_ = 0;
  bool planes_ = false;  // A channel behind the other.
};

class PackedStore final : public ImageStore {
 public:
  explicit PackedStore(const ImagePaths& paths) : channels_(paths.channels) {
    const std::vector<std::string> files = ExpandPaths(paths.paths, paths.where);
    std::vector<std::string> labels;
    if (!paths.labels.empty()) labels = ExpandPaths(paths.labels, paths.where_labels);
    size_t next = 0;
    for (const std::string& path : files) {
      PackedImages images{OpenPacked(path)};
      if (const std::vector<int64_t> sizes = IdxSizes(images.file()); !sizes.empty()) {
        if (sizes.size() < 3) Refuse(path, "is an IDX file, but not of images");
        if (next == labels.size()) {
          Refuse(path, "is an IDX file, and no file of labels belongs to it: " +
                           paths.where_labels + " has " + Counted(std::ssize(labels), "file"));
        }
        images.OpenIdx(sizes, OpenPacked(labels[next++]));
      } else if (!images.OpenCifar()) {
        const std::string other = FindOtherFormat(path, images.file().bytes(), "images as IDX");
        if (!other.empty()) Refuse(path, other);
        Refuse(path,
               "is neither an IDX file of images nor CIFAR's records of 3073 or 3074 bytes; "
               "JPEG and PNG are given by the directory that holds a folder for each class");
      }
      const ImagePixels size = images.Size();
      std::string wrong;
      if (channels_ > 0 && !CanConvert(size.channels, channels_)) {
        wrong = WrongChannels(size.channels, channels_);
      } else if (paths.why_not) {
        wrong = paths.why_not(size);
      }
      if (!wrong.empty() && images.count() > 0) Refuse(path, "image 0: " + wrong);
      begins_.push_back(size_);
      size_ += images.count();
      parts_.push_back(std::move(images));
    }
    if (next < labels.size()) {
      Refuse(labels[next], "is a file of labels, but the paths hold no more than " +
                               Counted(static_cast<int64_t>(next), "IDX file") + " of images");
    }
    if (size_ == 0) Refuse(files[0], "holds no image");
  }

  int64_t size() const override { return size_; }
  int32_t Label(int64_t i) const override {
    const auto [part, at] = PlaceOf(i);
    return parts_[part].Label(at);
  }
  void Read(int64_t i, ImagePixels& pixels) const override {
    const auto [part, at] = PlaceOf(i);
    parts_[part].Read(at, pixels);
    if (channels_ > 0) ConvertChannels(channels_, pixels);
  }
  std::string Where(int64_t i) const override {
    const auto [part, at] = PlaceOf(i);
    return PrintableName(parts_[part].file().path()) + ", image " + std::to_string(at);
  }
  std::string Describe() const override {
    return AndMoreFiles(PrintableName(parts_[0].file().path()), parts_.size());
  }
  const std::vector<std::string>& classes() const override { return no_names_; }
  std::vector<DataFile> Files() const override {
    std::vector<DataFile> files;
    for (const PackedImages& part : parts_) {
      files.push_back(DescribeFile(part.file()));
      if (part.labels() != nullptr) files.push_back(DescribeFile(*part.labels()));
    }
    return files;
  }

 private:
  std::pair<size_t, int64_t> PlaceOf(int64_t i) const {
    const auto behind = std::upper_bound(begins_.begin(), begins_.end(), i);
    const auto part = static_cast<size_t>(behind - begins_.begin() - 1);
    return {part, i - begins_[part]};
  }

  const int64_t channels_;
  std::vector<PackedImages> parts_;
  std::vector<int64_t> begins_;
  int64_t size_ = 0;
  const std::vector<std::string> no_names_;
};

// Folders of classes in one directory.
class FolderStore final : public ImageStore {
 public:
  FolderStore(const std::vector<std::string>& directories, const ImagePaths& paths)
      : channels_(paths.channels) {
    std::set<std::string> names;
    for (const std::string& directory : directories) {
      for (const fs::directory_entry& entry : Entries(directory)) {
        const std::string name = entry.path().filename().string();
        if (name.starts_with('.')) continue;
        if (entry.is_directory()) {
          names.insert(name);
        } else if (IsImageName(name)) {
          LeaveOut(entry.path().string());
        }
      }
    }
    classes_.assign(names.begin(), names.end());
    for (const std::string& directory : directories) {
      const size_t before = images_.size();
      for (size_t label = 0; label < classes_.size(); ++label) {
        AddClass(directory + "/" + classes_[label], static_cast<int32_t>(label));
      }
      if (images_.size() == before) {
        throw DataError(paths.where + ": " + PrintableName(directory) +
                        ": holds no folder with .jpg, .jpeg or .png files: images are in a folder "
                        "for each class");
      }
      directories_.push_back({directory, before, images_.size()});
    }
    if (left_out_ > 0 && paths.say) {
      paths.say(
          "data: " + Describe() + ": " + Counted(left_out_, "file") +
          (left_out_ == 1 ? " is" : " are") +
          " left out, for images are .jpg, .jpeg and .png files in a folder for each class: " +
          PrintableName(first_left_out_) + (left_out_ > 1 ? " is the first" : ""));
    }
    if (channels_ > 0) LookAtAll(paths);
  }

  int64_t size() const override { return std::ssize(images_); }
  int32_t Label(int64_t i) const override { return At(i).label; }
  void Read(int64_t i, ImagePixels& pixels) const override {
    const FileContents file(At(i).path);
    const std::string wrong = DecodeImage(file.bytes(), pixels, channels_);
    file.CheckIntact();
    if (!wrong.empty()) Refuse(file.path(), wrong);
  }
  std::string Where(int64_t i) const override { return PrintableName(At(i).path); }
  std::string Describe() const override {
    return AndMoreFiles(PrintableName(directories_[0].path), directories_.size());
  }
  const std::vector<std::string>& classes() const override { return classes_; }
  std::vector<DataFile> Files() const override {
    std::vector<DataFile> files;
    for (const Directory& directory : directories_) files.push_back(DescribeFolder(directory));
    return files;
  }

 private:
  struct Image {
    std::string path;
    int64_t bytes;
    int32_t label;
  };
  struct Directory {
    std::string path;
    size_t begin, end;  // Its images.
  };

  // Throws DataError for the first image whose header says that it cannot be read.
  void LookAtAll(const ImagePaths& paths) const {
    constexpr std::chrono::seconds kLongest{60};
    constexpr size_t kMostThreads = 16;  // They wait for a disk rather than compute.
    const auto end = std::chrono::steady_clock::now() + kLongest;
    std::atomic<size_t> next = 0, looked = 0, wrong = images_.size();
    std::mutex mutex;
    std::exception_ptr error;
    const auto work = [&] {
      ImagePixels size;
      for (size_t i = next++; i < wrong && std::chrono::steady_clock::now() < end; i = next++) {
        try {
          LookAt(images_[i].path, paths, size);
          ++looked;
        } catch (...) {  // Those before it have been taken by some thread.
          const std::lock_guard lock(mutex);
          if (i >= wrong) continue;
          wrong = i;
          error = std::current_exception();
        }
      }
    };
    {
      std::vector<std::jthread> helpers;
      for (size_t i = 1; i < std::min(kMostThreads, images_.size() / 64); ++i) {
        helpers.push_back(StartThread<std::jthread>("a thread that looks at images", work));
      }
      work();
    }
    if (error) std::rethrow_exception(error);
    if (looked == images_.size() || !paths.say) return;
    paths.say("data: " + Describe() + ": has looked at the headers of " + std::to_string(looked) +
              " of " + std::to_string(images_.size()) +
              " images in a minute; the others are checked when they are read");
  }
  void LookAt(const std::string& path, const ImagePaths& paths, ImagePixels& size) const {
    const FileContents file(path);
    std::string why = LookAtImage(file.bytes(), size, channels_);
    file.CheckIntact();
    if (why.empty() && paths.why_not) why = paths.why_not(size);
    if (!why.empty()) Refuse(file.path(), why);
  }
  static std::vector<fs::directory_entry> Entries(const std::string& directory) {
    std::error_code error;
    fs::directory_iterator entries(directory, error);
    if (error) Refuse(directory, "cannot be read: " + error.message());
    return {begin(entries), end(entries)};
  }
  void AddClass(const std::string& folder, int32_t label) {
    std::error_code error;
    if (!fs::is_directory(folder, error)) return;  // A class that another directory has.
    std::vector<Image> found;
    for (const fs::directory_entry& entry : Entries(folder)) {
      const std::string path = entry.path().string();
      if (entry.path().filename().string().starts_with('.')) continue;
      if (!IsImageName(path) || entry.is_directory(error)) {
        LeaveOut(path);
        continue;
      }
      const auto bytes = static_cast<int64_t>(entry.file_size(error));
      if (error) Refuse(path, "cannot be read: " + error.message());
      found.push_back({path, bytes, label});
    }
    std::sort(found.begin(), found.end(),
              [](const Image& a, const Image& b) { return a.path < b.path; });
    std::move(found.begin(), found.end(), std::back_inserter(images_));
  }
  void LeaveOut(const std::string& path) {
    if (left_out_++ == 0 || path < first_left_out_) first_left_out_ = path;
  }
  DataFile DescribeFolder(const Directory& directory) const {
    constexpr size_t kContents = 256;
    const size_t n = directory.end - directory.begin;
    DataFile folder{directory.path, 0, 0};
    std::string text;
    for (size_t i = directory.begin; i < directory.end; ++i) {
      folder.bytes += images_[i].bytes;
      text += images_[i].path.substr(directory.path.size()) + " " +
              std::to_string(images_[i].bytes) + "\n";
    }
    for (size_t k = 0; k < std::min(n, kContents); ++k) {
      const size_t i = directory.begin + (n <= kContents ? k : k * (n - 1) / (kContents - 1));
      text += std::to_string(fsdp::DescribeFile(FileContents(images_[i].path)).hash) + "\n";
    }
    folder.hash = HashBytes(text);
    return folder;
  }
  const Image& At(int64_t i) const { return images_[static_cast<size_t>(i)]; }

  const int64_t channels_;
  std::vector<std::string> classes_;
  std::vector<Image> images_;
  std::vector<Directory> directories_;
  int64_t left_out_ = 0;
  std::string first_left_out_;
};

}  // namespace

std::shared_ptr<const ImageStore> OpenImages(const ImagePaths& paths) {
  const std::vector<std::string> all = ExpandPaths(paths.paths, paths.where);
  std::error_code ignored;
  const auto is_folder = [&](const std::string& path) { return fs::is_directory(path, ignored); };
  if (std::none_of(all.begin(), all.end(), is_folder)) return std::make_shared<PackedStore>(paths);
  for (const std::string& path : all) {
    if (!is_folder(path)) Refuse(path, "is a file, but another path is a folder of images");
  }
  if (!paths.labels.empty()) {
    Refuse(paths.labels[0], "is a file of labels, but the labels of folders are their names");
  }
  return std::make_shared<FolderStore>(all, paths);
}

}  // namespace fsdp
