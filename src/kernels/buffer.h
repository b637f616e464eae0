// Memory aligned to cache lines, with room behind its end for prefetching and whole-vector reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

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
    size_t whole = (bytes + kSlack + kLine - 1) / kLine * kLine;
    data_ = std::aligned_alloc(kLine, whole);
    if (!data_) throw std::bad_alloc();
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
  static constexpr size_t kSlack = 4096;
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace slipstream
