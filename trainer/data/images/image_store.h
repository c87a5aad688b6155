// Images with their labels, as files hold them: IDX (http://yann.lecun.com/exdb/mnist), with labels
// in files of their own, CIFAR's binaries (https://www.cs.toronto.edu/~kriz/cifar.html), either
// compressed or not, and folders of JPEG and PNG, a folder for each class.
// Tests: tests/trainer/data/images/image_store_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_IMAGES_IMAGE_STORE_H_
#define FSDP_TRAIN_TRAINER_DATA_IMAGES_IMAGE_STORE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trainer/data/data_files.h"
#include "trainer/data/images/image_pixels.h"

namespace fsdp {

// Safe for any number of threads.
class ImageStore {
 public:
  virtual ~ImageStore() = default;

  virtual int64_t size() const = 0;
  virtual int32_t Label(int64_t i) const = 0;
  // Throws DataError that names the file where it cannot be read or decoded.
  virtual void Read(int64_t i, ImagePixels& pixels) const = 0;
  virtual std::string Where(int64_t i) const = 0;  // "cats/7.png", "train.gz, image 7".
  virtual std::string Describe() const = 0;        // In a few words, for messages.
  // Names of classes: the folders' names in order; otherwise empty, and classes are numbers.
  virtual const std::vector<std::string>& classes() const = 0;
  // The files that are read, for later runs to compare. A folder counts as one file, known by the
  // names and sizes of all its images and by the contents of 256 of them, evenly spaced.
  virtual std::vector<DataFile> Files() const = 0;
};

struct ImagePaths {
  std::vector<std::string> paths, labels;  // labels: for IDX, one file for each file of images.
  // The recipe keys, for messages about either.
  std::string where = "data", where_labels = "data";
  // That images are read with (CanConvert()); 0: their own, and no file of a folder is looked at.
  int64_t channels = 0;
  // Why an image of this size is of no use, or ""; from any thread. Null: all are.
  std::function<std::string(const ImagePixels& size)> why_not = nullptr;
  std::function<void(const std::string&)> say = nullptr;  // May be null.
};

// The images of all paths, one behind the other. Looks at the header of each, of files in folders
// by several threads and for a minute at most. Throws DataError for a file of another kind, counts
// that do not agree, folders without images, and folders beside files, and names the first image
// that has other channels, is too large or `why_not`.
std::shared_ptr<const ImageStore> OpenImages(const ImagePaths& paths);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_IMAGES_IMAGE_STORE_H_
