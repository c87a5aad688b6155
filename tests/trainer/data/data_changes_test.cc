#include <gtest/gtest.h>

#include "trainer/data/data_files.h"

namespace fsdp {
namespace {

using Files = std::vector<DataFile>;
using Changes = std::vector<std::string>;

const Files kBefore = {{"d/a", 10, 1}, {"d/b", 20, 2}, {"d/c", 30, 3}};

TEST(DataChanges, ContentsAndOrderCountAndPathsDoNot) {
  EXPECT_EQ(DataChanges(kBefore, kBefore), Changes{});
  EXPECT_EQ(DataChanges(kBefore, {{"e/x", 10, 1}, {"e/y", 20, 2}, {"z", 30, 3}}), Changes{});
  EXPECT_EQ(DataChanges({}, {}), Changes{});
}

TEST(DataChanges, NamesAChangedFileWithBothContents) {
  EXPECT_EQ(DataChanges(kBefore, {{"d/a", 10, 1}, {"d/b", 20, 0xfeed}, {"d/c", 30, 3}}),
            (Changes{"d/b: has 20 bytes with hash 000000000000feed, but the run was trained on 20 "
                     "bytes with hash 0000000000000002"}));
  // Moved and changed.
  EXPECT_EQ(DataChanges(kBefore, {{"e/a", 10, 1}, {"e/b", 21, 2}, {"e/c", 30, 3}}),
            (Changes{"e/b: has 21 bytes with hash 0000000000000002, but the run was trained on 20 "
                     "bytes with hash 0000000000000002 (d/b)"}));
  EXPECT_EQ(DataChanges(kBefore, {{"d/a", 1, 1}, {"d/b", 2, 2}, {"d/c", 3, 3}}).size(), 3u);
}

TEST(DataChanges, NamesAMissingAndANewFileAlone) {
  EXPECT_EQ(DataChanges(kBefore, {{"d/a", 10, 1}, {"d/c", 30, 3}}),
            (Changes{"d/b: the run was trained on it, 20 bytes with hash 0000000000000002, and it "
                     "is missing"}));
  EXPECT_EQ(DataChanges(kBefore, {{"d/0", 5, 5}, {"d/a", 10, 1}, {"d/b", 20, 2}, {"d/c", 30, 3}}),
            (Changes{"d/0: the run was not trained on it, 5 bytes with hash 0000000000000005"}));
  EXPECT_EQ(DataChanges({}, {{"d/a", 10, 1}}).size(), 1u);
  EXPECT_EQ(DataChanges(kBefore, {}).size(), 3u);
}

TEST(DataChanges, NamesTheFirstPlaceOfAnotherOrder) {
  EXPECT_EQ(DataChanges(kBefore, {{"d/a", 10, 1}, {"d/c", 30, 3}, {"d/b", 20, 2}}),
            (Changes{"d/c: the files are in another order: here the run had d/b"}));
  // One of two equal ones has gone.
  EXPECT_EQ(DataChanges({{"a", 1, 1}, {"b", 1, 1}}, {{"a", 1, 1}}),
            (Changes{"b: the run was trained on it, 1 bytes with hash 0000000000000001, and it is "
                     "missing"}));
}

}  // namespace
}  // namespace fsdp
