#include "tests/emulated/shared_arrays.h"

#include <link.h>

#include <cstdint>
#include <utility>

namespace fsdp {

SharedArrays::SharedArrays(const void* kernel) {
  std::pair search{reinterpret_cast<uintptr_t>(kernel), this};
  const auto look = [](dl_phdr_info* library, size_t, void* argument) {
    const auto [address, arrays] = *static_cast<decltype(search)*>(argument);
    bool here = false;
    for (int i = 0; i < library->dlpi_phnum; ++i) {
      const ElfW(Phdr)& part = library->dlpi_phdr[i];
      here |= part.p_type == PT_LOAD && address - library->dlpi_addr - part.p_vaddr < part.p_memsz;
    }
    if (!here) return 0;
    const bool is_program = *library->dlpi_name == '\0';
    for (int i = 0; i < library->dlpi_phnum && !is_program; ++i) {
      if (library->dlpi_phdr[i].p_type != PT_TLS) continue;
      arrays->data_ = library->dlpi_tls_data;
      arrays->bytes_ = arrays->data_ == nullptr ? 0 : library->dlpi_phdr[i].p_memsz;
    }
    return 1;
  };
  dl_iterate_phdr(+look, &search);
}

}  // namespace fsdp
