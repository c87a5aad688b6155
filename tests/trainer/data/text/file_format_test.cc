#include "trainer/data/text/file_format.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace fsdp {
namespace {

using std::string_literals::operator""s;
using std::string_view_literals::operator""sv;

std::string Found(std::string_view contents, const std::string& path = "a.txt") {
  const auto found = FindNoText(path, contents);
  return found ? found->what + ": " + found->cure : "text";
}

// Whatever else there is in a file of that format: a few bytes that are no text.
std::string File(std::string_view begin, std::string_view end = "") {
  return std::string(begin) + std::string("\x15\x04\0\xe9\x80", 5) + std::string(end);
}

TEST(FileFormat, KnowsFormatsByTheirMarksAndSaysHowToConvert) {
  struct Case {
    std::string contents, name, cure;
  };
  std::string zip("PK\3\4", 4), npz = zip, torch = zip, tar(512, '\0');
  for (auto* with : {&npz, &torch}) with->append(22, '\0').append("\x0d\0\0\0", 4);
  npz += "arr_0arr_.npy";
  torch += "m/12/data.pkl";
  tar.replace(0, 5, "a.txt").replace(257, 5, "ustar");
  const std::vector<Case> cases = {
      {File("PAR1", "PAR1"), "is Parquet, not text: ",
       "convert it: python3 -c 'import sys, pandas; pandas.read_parquet(sys.argv[1]).to_json("
       "sys.argv[2], orient=\"records\", lines=True)' a.txt a.txt.jsonl"},
      {"PAR1 in letters alone PAR1", "Parquet", "read_parquet"},  // Its end says it.
      {File("ARROW1\0\0"sv, "ARROW1"), "Arrow", "ipc.open_file("},
      {File("FEA1"), "Feather", "pandas.read_feather("},
      {File("\xff\xff\xff\xff\x10\1\0\0"sv), "stream of Arrow", "ipc.open_stream("},
      {File("ORC"), "ORC", "pandas.read_orc("},
      {File("Obj\1"), "Avro", "fastavro.reader("},
      {File("\x28\xb5\x2f\xfd"), "Zstandard", "rename it: mv a.txt a.txt.zst"},
      {File("\x1f\x8b\x08"), "gzip", "rename it: mv a.txt a.txt.gz"},
      {File("BZh91AY&SY"), "bzip2", "decompress it: bzip2 -dc a.txt > a.txt.txt"},
      {File("\xfd\x37zXZ\0"sv), "xz", "decompress it: xz -dc a.txt > a.txt.txt"},
      {File("\x04\x22\x4d\x18"), "LZ4", "lz4 -dc a.txt"},
      {File("7z\xbc\xaf\x27\x1c"), "7z", "7z x a.txt"},
      {File("Rar!\x1a\7"), "RAR", "unrar x a.txt"},
      {File(zip), "a zip archive", "unpack it: unzip a.txt -d a.txt.files"},
      {File(npz), ".npz", "source: tokens: python3 -c 'import sys, numpy;"},
      {File(torch), "torch.save", "torch.load("},
      {File("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9"), "torch.save", "torch.load("},
      {File("\x80\x04\x95"), "pickle", "if you trust it"},
      {File("\x93NUMPY\1\0"sv), "NumPy", "source: tokens"},
      {File("\x89HDF\r\n\x1a\n"), "HDF5", "pandas.read_hdf("},
      {File("SQLite format 3\0"sv), "SQLite", "sqlite3 a.txt"},
      {"%PDF-1.4\nof letters alone", "PDF", "pdftotext a.txt a.txt.txt"},
      {File("\x7f\x45LF"), "ELF", "take it out of data.*.paths"},
      {File("\x89PNG\r\n"), "PNG", "take it out"},
      {File("\xff\xd8\xff\xe0"), "JPEG", "take it out"},
      {File("GGUF\3\0\0\0"sv), "GGUF", "take it out"},
      {File("\x40\0\0\0\0\0\0\0{\"a\""sv), "safetensors", "model.init_from"},
      {File("\x88\xd8\x34\1\1\0\0\0"sv), "llm.c", "source: tokens"},
      {File(tar), "tar", "tar -xf a.txt"},
      {File("\xff\xfe\0\0a\0\0\0"sv), "text in UTF-32", "iconv -f UTF-32 -t UTF-8 a.txt"},
      {"\xff\xfe"
       "a\0b\0"s,
       "text in UTF-16", "iconv -f UTF-16 -t UTF-8 a.txt > a.txt.txt"},
      {"\xfe\xff"
       "\0a\0b"s,
       "text in UTF-16", "iconv -f UTF-16 -t"},
      {"n\0o\0 \0m\0a\0r\0k\0\n\0"s, "text in UTF-16LE", "iconv -f UTF-16LE"},
      {"\0n\0o\0 \0m\0a\0r\0k\0\n"s, "text in UTF-16BE", "iconv -f UTF-16BE"},
      {"text with one\0"s, "is no text (byte 13 is zero)", "tr -d '\\000' < a.txt > a.txt.txt"},
      {"\1\0\2\0\3\0\4\0\5\0"s, "is no text (byte 1 is zero)", ""},  // Ids of 16 bits, no UTF-16.
  };
  for (const Case& c : cases) {
    EXPECT_NE(Found(c.contents).find(c.name), std::string::npos) << Found(c.contents);
    EXPECT_NE(Found(c.contents).find(c.cure), std::string::npos) << Found(c.contents);
  }
}

TEST(FileFormat, TextIsText) {
  for (const std::string_view text :
       {"a"sv, "PAR1 is a gene.\n"sv, "ORCs and other folk"sv, "BZh"sv, "GGUF and PARE"sv,
        "\xef\xbb\xbfwith a mark"sv, "\xc3\xa9t\xc3\xa9\r\n\t\f\x1b[1m"sv, "Latin-1: \xe9"sv,
        "PK"sv, "\x1f"sv, "{\"text\": \"\\u0000\"}\n"sv}) {
    EXPECT_EQ(Found(text), "text") << text;
  }
  std::string late((64 << 10) - 1, 'x');
  EXPECT_EQ(Found(late + "x\0"s), "text");
  EXPECT_EQ(Found(late + "\0"s).find("is no text (byte 65535 is zero)"), 0);
  // A character that the first 64 KiB cut in two is no reason to doubt the letters in front.
  EXPECT_EQ(Found("PAR1" + late.substr(4) + "\xc3\xa9"), "text");
}

TEST(FileFormat, CuresNameTheFileAsAShellDoes) {
  EXPECT_EQ(Found(File("PAR1"), "it's/a b.gz"),
            "decompressed, it is Parquet, not text: convert it: gunzip -k 'it'\\''s/a b.gz' && "
            "python3 -c 'import sys, pandas; pandas.read_parquet(sys.argv[1]).to_json(sys.argv[2], "
            "orient=\"records\", lines=True)' 'it'\\''s/a b' 'it'\\''s/a b.jsonl'");
  EXPECT_EQ(Found("\x1f\x8b", "a OUT.zst"),
            "decompressed, it is compressed by gzip, not text: rename it: unzstd 'a OUT.zst' && "
            "mv 'a OUT' 'a OUT.gz'");
}

}  // namespace
}  // namespace fsdp
