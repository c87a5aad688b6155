#include "tests/trainer/observe/event_reader.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace fsdp {
namespace {

void Require(bool good, const std::string& what) {
  if (!good) throw std::runtime_error("event file: " + what);
}

// Bit by bit, the message's first bit being the highest power.
uint32_t CrcByDivision(std::string_view bytes) {
  uint32_t remainder = 0xffffffff;  // Not reflected: the polynomial as it is printed.
  for (const char c : bytes) {
    for (int bit = 0; bit < 8; ++bit) {
      const uint32_t in = static_cast<unsigned char>(c) >> bit & 1u;
      const bool subtract = (remainder >> 31) != in;
      remainder <<= 1;
      if (subtract) remainder ^= 0x1edc6f41;
    }
  }
  uint32_t reflected = 0;
  for (int bit = 0; bit < 32; ++bit) reflected |= (remainder >> bit & 1u) << (31 - bit);
  return ~reflected;
}

uint64_t LittleEndian(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = bytes.size(); i-- > 0;)
    value = value * 256 + static_cast<unsigned char>(bytes[i]);
  return value;
}

void RequireCrc(std::string_view bytes, std::string_view stored, const char* what) {
  const auto unmasked = static_cast<uint32_t>(LittleEndian(stored) - 0xa282ead8u);
  Require((unmasked >> 17 | unmasked << 15) == CrcByDivision(bytes), std::string("CRC of ") + what);
}

struct Field {
  uint64_t number = 0, wire = 0, integer = 0;
  std::string_view bytes;  // For wire types 1, 2 and 5.
};

uint64_t Varint(std::string_view& bytes) {
  uint64_t value = 0;
  for (int i = 0;; ++i) {
    Require(i < 10 && !bytes.empty(), "varint");
    const auto byte = static_cast<unsigned char>(bytes[0]);
    bytes.remove_prefix(1);
    value += static_cast<uint64_t>(byte % 128) << (7 * i);
    if (byte < 128) return value;
  }
}

std::vector<Field> Fields(std::string_view message) {
  std::vector<Field> fields;
  while (!message.empty()) {
    const uint64_t key = Varint(message);
    Field field{.number = key / 8, .wire = key % 8, .bytes = {}};
    if (field.wire == 0) {
      field.integer = Varint(message);
    } else {
      Require(field.wire == 1 || field.wire == 2 || field.wire == 5, "wire type");
      const uint64_t size = field.wire == 1 ? 8 : field.wire == 5 ? 4 : Varint(message);
      Require(size <= message.size(), "length of a field");
      field.bytes = message.substr(0, size);
      message.remove_prefix(size);
    }
    fields.push_back(field);
  }
  return fields;
}

template <typename T>
T Bits(std::string_view bytes) {
  Require(bytes.size() == sizeof(T), "size of a number");
  T value;
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

std::string TextOf(std::string_view tensor) {
  std::string text;
  int dtype = 0, strings = 0;
  bool scalar = false;
  for (const Field& field : Fields(tensor)) {
    if (field.number == 1) dtype = static_cast<int>(field.integer);
    if (field.number == 2) scalar = field.bytes.empty();
    if (field.number == 8) text = field.bytes, ++strings;
  }
  Require(dtype == 7 && scalar && strings == 1, "tensor of one string");
  return text;
}

void AddValue(std::string_view value, TensorBoardEvent& event) {
  std::string tag;
  std::string_view tensor, metadata, number;
  for (const Field& field : Fields(value)) {
    if (field.number == 1) tag = field.bytes;
    if (field.number == 2) number = field.bytes;
    if (field.number == 8) tensor = field.bytes;
    if (field.number == 9) metadata = field.bytes;
  }
  if (tensor.empty()) {
    Require(event.scalars.emplace(tag, Bits<float>(number)).second, "a tag twice: " + tag);
    return;
  }
  std::string plugin;
  for (const Field& field : Fields(metadata)) {
    if (field.number != 1) continue;
    for (const Field& inner : Fields(field.bytes)) {
      if (inner.number == 1) plugin = inner.bytes;
    }
  }
  Require(plugin == "text", "plugin " + plugin);
  event.texts[tag] = TextOf(tensor);
}

TensorBoardEvent EventOf(std::string_view payload) {
  TensorBoardEvent event;
  for (const Field& field : Fields(payload)) {
    if (field.number == 1) event.wall_time = Bits<double>(field.bytes);
    if (field.number == 2) event.step = static_cast<int64_t>(field.integer);
    if (field.number == 3) event.file_version = field.bytes;
    if (field.number == 7) {
      for (const Field& inner : Fields(field.bytes)) {
        event.session_start |= inner.number == 1 && inner.integer == 1;
      }
    }
    if (field.number == 5) {
      for (const Field& inner : Fields(field.bytes)) AddValue(inner.bytes, event);
    }
  }
  return event;
}

}  // namespace

std::vector<TensorBoardEvent> ReadEvents(const std::string& path) {
  std::ostringstream contents;
  contents << std::ifstream(path, std::ios::binary).rdbuf();
  const std::string file = contents.str();
  std::vector<TensorBoardEvent> events;
  for (std::string_view rest = file; !rest.empty();) {
    Require(rest.size() >= 16, "half a record");
    RequireCrc(rest.substr(0, 8), rest.substr(8, 4), "the length");
    const uint64_t size = LittleEndian(rest.substr(0, 8));
    Require(size <= rest.size() - 16, "half a record");
    const std::string_view payload = rest.substr(12, size);
    RequireCrc(payload, rest.substr(12 + size, 4), "the payload");
    events.push_back(EventOf(payload));
    rest.remove_prefix(16 + size);
  }
  return events;
}

std::vector<std::pair<int64_t, float>> ReadScalar(const std::string& directory,
                                                  const std::string& tag) {
  std::set<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.path().string().find("tfevents") != std::string::npos) paths.insert(entry.path());
  }
  std::vector<std::pair<int64_t, float>> values;
  for (const std::string& path : paths) {
    for (const TensorBoardEvent& event : ReadEvents(path)) {
      const auto at = event.scalars.find(tag);
      if (at != event.scalars.end()) values.emplace_back(event.step, at->second);
    }
  }
  return values;
}

}  // namespace fsdp
