// safetensors_copy IN OUT: reads a file with our reader and writes it with our writer, in small
// pieces from the last to the first. safetensors_interop.py holds both files to Python's library.
#include <algorithm>
#include <cstdio>

#include "trainer/checkpoint/safetensors.h"
#include "trainer/core/errors.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s IN OUT\n", argv[0]);
    return static_cast<int>(fsdp::ExitCode::kUsage);
  }
  try {
    const fsdp::SafetensorsReader reader(argv[1]);
    std::vector<fsdp::SafetensorsEntry> entries;
    for (const std::string& name : reader.Names()) {
      entries.push_back({name, reader.Info(name).type, reader.Info(name).shape});
    }
    fsdp::SafetensorsWriter writer(argv[2], entries, reader.Metadata());
    constexpr int64_t kPiece = 999;
    for (const std::string& name : reader.Names()) {
      std::byte piece[kPiece];
      for (int64_t end = reader.Info(name).bytes(); end > 0; end -= kPiece) {
        const int64_t begin = std::max<int64_t>(0, end - kPiece);
        const std::span<std::byte> bytes(piece, static_cast<size_t>(end - begin));
        reader.ReadBytes(name, begin, bytes);
        writer.WriteBytes(name, begin, bytes);
      }
    }
    writer.Finish();
  } catch (const fsdp::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.code());
  }
  return 0;
}
