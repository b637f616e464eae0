// Memory aligned to cache lines, with room behind its end for prefetching and whole-vector reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace slipstream {

class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t bytes) { reserve(bytes); }
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Buffer() { std::free(data_); }

  // Makes room for at least `bytes`, zeroed; what was there is lost if it grows.
  void reserve(size_t bytes) {
    if (bytes <= bytes_) return;
    std::free(data_);
    bytes_ = 0;
    size_t align = bytes < kPage ? kLine : kPage;
    size_t whole = (bytes + kSlack + align - 1) / align * align;
    data_ = std::aligned_alloc(align, whole);
    if (!data_) throw std::bad_alloc();
#if defined(__linux__)
    if (align == kPage) madvise(data_, whole, MADV_HUGEPAGE);  // weights are read from end to end: fewer pages to look up
#endif
    std::memset(data_, 0, whole);
    bytes_ = bytes;
  }

  size_t bytes() const { return bytes_; }
  template <class T = uint8_t>
  T* as() { return static_cast<T*>(data_); }
  template <class T = uint8_t>
  const T* as() const { return static_cast<const T*>(data_); }

 private:
  static constexpr size_t kLine = 64;
  static constexpr size_t kPage = 2 << 20;
  static constexpr size_t kSlack = 8192;
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace slipstream
