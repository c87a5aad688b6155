#include "trainer/data/text/file_format.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <span>

#include "trainer/core/paths.h"
#include "trainer/data/decompress.h"
#include "trainer/data/text/text_format.h"
#include "trainer/data/tokenizers/unicode.h"

namespace fsdp {
namespace {

// With the zeros in it.
template <size_t N>
constexpr std::string_view Bytes(const char (&text)[N]) {
  return {text, N - 1};
}

constexpr size_t kLookedAt = 64 << 10;  // Bytes.

// IN of a command is the file, OUT the same name with `end` behind it.
struct Format {
  std::string_view name;
  std::string_view command;  // Empty: `how` says all.
  std::string_view end = ".txt";
  std::string_view how = "convert it";
};

#define FSDP_BY_PANDAS(reader)                          \
  "python3 -c 'import sys, pandas; pandas.read_" reader \
  "(sys.argv[1]).to_json(sys.argv[2], orient=\"records\", lines=True)' IN OUT"
#define FSDP_BY_PYARROW(opener)                                                         \
  "python3 -c 'import sys, pyarrow.ipc as ipc; ipc." opener                             \
  "(open(sys.argv[1], \"rb\")).read_pandas().to_json(sys.argv[2], orient=\"records\", " \
  "lines=True)' IN OUT"
constexpr std::string_view kTensor =
    "python3 -c 'import sys, numpy, torch; numpy.save(sys.argv[2], "
    "torch.load(sys.argv[1]).numpy().astype(\"uint32\"))' IN OUT";
constexpr std::string_view kForTensor =
    "convert it, where it is a tensor of ids, for source: tokens";
constexpr std::string_view kNone = "take it out of data.*.paths";

struct Mark {
  std::string_view begin;
  Format format;
  bool letters = false;       // A text may begin so.
  std::string_view end = {};  // Where `letters`: what the format ends with, too.
};

constexpr Mark kMarks[] = {
    {"PAR1", {"Parquet", FSDP_BY_PANDAS("parquet"), ".jsonl"}, true, "PAR1"},
    {"PARE", {"encrypted Parquet", "", "", kNone}, true, "PARE"},
    {"ARROW1", {"an Arrow file (Feather)", FSDP_BY_PYARROW("open_file"), ".jsonl"}, true, "ARROW1"},
    {"FEA1", {"Feather", FSDP_BY_PANDAS("feather"), ".jsonl"}, true, "FEA1"},
    {"\xff\xff\xff\xff", {"a stream of Arrow", FSDP_BY_PYARROW("open_stream"), ".jsonl"}},
    {"ORC", {"ORC", FSDP_BY_PANDAS("orc"), ".jsonl"}, true},
    {"Obj\x01",
     {"Avro",
      "python3 -c 'import json, sys, fastavro; [print(json.dumps(r)) for r in "
      "fastavro.reader(open(sys.argv[1], \"rb\"))]' IN > OUT",
      ".jsonl"}},
    {"\x28\xb5\x2f\xfd", {"compressed by Zstandard", "mv IN OUT", ".zst", "rename it"}},
    {"\x1f\x8b", {"compressed by gzip", "mv IN OUT", ".gz", "rename it"}},
    {"\x1f\x9d", {"compressed by compress", "zcat IN > OUT", ".txt", "decompress it"}},
    {"BZh", {"compressed by bzip2", "bzip2 -dc IN > OUT", ".txt", "decompress it"}, true},
    {"\xfd\x37zXZ", {"compressed by xz", "xz -dc IN > OUT", ".txt", "decompress it"}},
    {"\x04\x22\x4d\x18", {"compressed by LZ4", "lz4 -dc IN > OUT", ".txt", "decompress it"}},
    {"7z\xbc\xaf", {"a 7z archive", "7z x IN", "", "unpack it"}},
    {"Rar!\x1a", {"a RAR archive", "unrar x IN", "", "unpack it"}},
    {"PK\x03\x04", {"a zip archive", "unzip IN -d OUT", ".files", "unpack it"}},
    {"PK\x05\x06", {"an empty zip archive", "", "", kNone}},
    {"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9", {"a file of torch.save", kTensor, ".npy", kForTensor}},
    {"\x93NUMPY",
     {"a NumPy array", "", "", "source: tokens reads it, where it is an array of token ids"}},
    {"\x89HDF\r\n", {"HDF5", FSDP_BY_PANDAS("hdf"), ".jsonl"}},
    {Bytes("SQLite format 3\0"),
     {"an SQLite database", "sqlite3 IN \"SELECT json_object('text', COLUMN) FROM TABLE\" > OUT",
      ".jsonl"}},
    {"%PDF-", {"PDF", "pdftotext IN OUT"}},
    {"\x7f\x45LF", {"a program or a library (ELF)", "", "", kNone}},
    {"\x89PNG", {"a PNG image", "", "", kNone}},
    {"\xff\xd8\xff", {"a JPEG image", "", "", kNone}},
    {"GGUF", {"a model's weights (GGUF)", "", "", kNone}, true},
};

// Files of tables by name: nothing else tells .csv from text.
struct Table {
  std::string_view end, what;
  Format format;
};
constexpr Format kRename = {"", "", "", "rename it, if it is text"};
constexpr Table kTables[] = {
    {".csv", "is a table, not text", {"", FSDP_BY_PANDAS("csv"), ".jsonl"}},
    {".tsv", "is a table, not text", {"", FSDP_BY_PANDAS("table"), ".jsonl"}},
    {".parquet", "is called Parquet, and is none", kRename},
    {".arrow", "is called an Arrow file, and is none", kRename},
    {".feather", "is called a Feather file, and is none", kRename},
};
#undef FSDP_BY_PANDAS
#undef FSDP_BY_PYARROW

constexpr Format kPickle = {
    "a Python pickle",
    "python3 -c 'import sys, pandas; pandas.DataFrame(pandas.read_pickle(sys.argv[1])).to_json("
    "sys.argv[2], orient=\"records\", lines=True)' IN OUT",
    ".jsonl", "convert it, if you trust it, for it may run code"};
constexpr Format kTorch = {"a file of torch.save", kTensor, ".npy", kForTensor};
constexpr Format kNpz = {"NumPy's arrays (.npz)",
                         "python3 -c 'import sys, numpy; a = numpy.load(sys.argv[1]); "
                         "numpy.save(sys.argv[2], a[a.files[0]])' IN OUT",
                         ".npy", "convert it, where it holds token ids, for source: tokens"};
constexpr Format kSafetensors = {"safetensors", "", "", "model.init_from reads weights"};
constexpr Format kLlmc = {"tokens of llm.c", "", "", "source: tokens reads it"};
constexpr Format kTar = {"a tar archive", "mkdir OUT && tar -xf IN -C OUT", ".files", "unpack it"};

// A byte that no text has in any encoding that keeps ASCII.
bool IsControl(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte < 0x20 && (byte < '\b' || byte > '\r') && byte != 0x1b;
}

bool MayBeText(std::string_view begin) {
  // The last character may be cut off.
  const size_t whole = begin.size() - std::min<size_t>(begin.size(), 3);
  return std::none_of(begin.begin(), begin.end(), IsControl) &&
         CountIllFormed(begin, 0, whole).count == 0;
}

template <typename T>
T Load(std::string_view bytes, size_t at) {
  T value{};
  if (bytes.size() >= at + sizeof(T)) std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

// The kind of a zip archive: torch's and NumPy's files are zip archives.
Format KindOfZip(std::string_view begin) {
  const size_t size = Load<uint16_t>(begin, 26);
  const std::string_view name = begin.substr(std::min<size_t>(30, begin.size()), size);
  if (name.ends_with("data.pkl")) return kTorch;
  if (name.ends_with(".npy")) return kNpz;
  return {"a zip archive", "unzip IN -d OUT", ".files", "unpack it"};
}

std::optional<Format> FindFormat(std::string_view contents) {
  const std::string_view begin = contents.substr(0, kLookedAt);
  for (const Mark& mark : kMarks) {
    if (!begin.starts_with(mark.begin)) continue;
    const bool ends =
        !mark.end.empty() && contents.size() > 2 * mark.end.size() && contents.ends_with(mark.end);
    if (mark.letters && !ends && MayBeText(begin)) continue;
    return mark.begin.starts_with("PK\x03") ? KindOfZip(begin) : mark.format;
  }
  // Protocols 2 to 5 begin so, and a text does not: 0x80 begins no character.
  if (begin.size() > 2 && begin[0] == '\x80' && begin[1] >= 2 && begin[1] <= 5) return kPickle;
  const auto header = Load<uint64_t>(begin, 0);
  if (header > 1 && header < (uint64_t{1} << 32) && begin.substr(8).starts_with("{\"")) {
    return kSafetensors;
  }
  const auto magic = Load<int32_t>(begin, 0);
  if (magic == 20240520 || magic == 20240801) return kLlmc;
  if (begin.substr(std::min<size_t>(257, begin.size())).starts_with("ustar")) return kTar;
  return std::nullopt;
}

// Whether `begin` is ASCII in units of two bytes, of which the one at `zero` (0 or 1) is zero.
bool IsWideAscii(std::string_view begin, size_t zero) {
  const size_t units = std::min<size_t>(begin.size(), 1024) / 2;
  size_t ascii = 0;
  for (size_t i = 0; i < units; ++i) {
    if (begin[2 * i + zero] != '\0') continue;
    const char c = begin[2 * i + 1 - zero];
    if (c == '\0' || IsControl(c) || static_cast<unsigned char>(c) >= 0x7f) return false;
    ++ascii;
  }
  return units >= 4 && 2 * ascii > units;
}

// The name that iconv knows, or empty.
std::string_view WideEncoding(std::string_view begin) {
  if (begin.starts_with(Bytes("\xff\xfe\0\0")) || begin.starts_with(Bytes("\0\0\xfe\xff"))) {
    return "UTF-32";
  }
  if (begin.starts_with("\xff\xfe") || begin.starts_with("\xfe\xff")) return "UTF-16";
  return IsWideAscii(begin, 1) ? "UTF-16LE" : IsWideAscii(begin, 0) ? "UTF-16BE" : "";
}

std::string Filled(std::string_view command, const std::string& in, const std::string& out) {
  std::string filled;
  while (!command.empty()) {
    const bool is_in = command.starts_with(" IN"), is_out = command.starts_with(" OUT");
    filled += is_in ? " " + in : is_out ? " " + out : std::string(1, command[0]);
    command.remove_prefix(is_in ? 3 : is_out ? 4 : 1);
  }
  return filled;
}

NoText Describe(const std::string& path, const std::string& what, const Format& format) {
  const std::string in = WithoutCompression(path);
  const bool compressed = in != path;
  std::string cure(format.how);
  if (!format.command.empty()) {
    cure += ": ";
    if (compressed) {
      cure += (path.ends_with(".gz") ? "gunzip -k " : "unzstd ") + ShellWord(path) + " && ";
    }
    cure += Filled(format.command, ShellWord(in), ShellWord(in + std::string(format.end)));
  }
  return {(compressed ? "decompressed, it " : "") + what, cure};
}

std::optional<NoText> FindWide(const std::string& path, std::string_view contents) {
  const std::string_view wide = WideEncoding(contents.substr(0, kLookedAt));
  if (wide.empty()) return std::nullopt;
  const std::string command = "iconv -f " + std::string(wide) + " -t UTF-8 IN > OUT";
  return Describe(path, "is text in " + std::string(wide) + ", not UTF-8", {"", command});
}

}  // namespace

std::string FindOtherFormat(const std::string& path, std::string_view contents,
                            const std::string& wanted) {
  std::optional<NoText> found = FindWide(path, contents);
  if (std::optional<Format> format = FindFormat(contents); format && format->how != kNone) {
    if (format->end == ".jsonl") format->command = "";  // Makes text of it.
    found = Describe(path, "is " + std::string(format->name) + ", not " + wanted, *format);
  }
  return found ? found->what + ": " + found->cure : "";
}

std::optional<NoText> FindNoText(const std::string& path, std::string_view contents) {
  if (const std::optional<Format> format = FindFormat(contents)) {
    return Describe(path, "is " + std::string(format->name) + ", not text", *format);
  }
  if (std::optional<NoText> wide = FindWide(path, contents)) return wide;
  const std::string_view begin = contents.substr(0, kLookedAt);
  const size_t zero = begin.find('\0');
  if (zero == std::string_view::npos) {
    const std::string name = FormatName(path);
    const auto* const table = std::find_if(std::begin(kTables), std::end(kTables),
                                           [&](const Table& t) { return t.end == name; });
    if (table == std::end(kTables) || FormatOf(path, contents) != TextFormat::kText) return {};
    return Describe(path, std::string(table->what), table->format);
  }
  return Describe(
      path, "is no text (byte " + std::to_string(zero) + " is zero)",
      {"", "tr -d '\\000' < IN > OUT", ".txt",
       "take it out of data.*.paths, or, if it is text but for zero bytes, rid it of them"});
}

}  // namespace fsdp
