// Rows of a vocabulary as Python hands them over: addresses of contiguous float32 memory that it has checked.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "bind_decoder.h"
#include "laws.h"

namespace nb = nanobind;

namespace slipstream {
namespace {

using Address = uintptr_t;

template <class T>
T* at(Address address) {
  return reinterpret_cast<T*>(address);
}

std::vector<double> weigh(Address x, int cols, const std::vector<float>& peaks, const std::vector<float>& inverses,
                          Address out) {
  if (inverses.size() != peaks.size()) throw std::invalid_argument("a peak and a temperature for each row");
  return weigh_rows(at<const float>(x), cols, peaks, inverses, at<float>(out));
}

// Rows by their addresses; a q of 0 is none, a drop of -1 too.
std::vector<double> residual_rows(const std::vector<Address>& p, const std::vector<Address>& q,
                                  const std::vector<float>& r, const std::vector<int>& drop, int cols, Address out) {
  if (q.size() != p.size() || r.size() != p.size() || drop.size() != p.size())
    throw std::invalid_argument("p, q, r and drop for each row");
  std::vector<Residual> rows;
  for (size_t i = 0; i < p.size(); i++) rows.push_back({at<const float>(p[i]), at<const float>(q[i]), r[i], drop[i]});
  return residuals(rows, cols, at<float>(out));
}

std::vector<int> draw_rows(const std::vector<Address>& addresses, int cols, const std::vector<double>& uniforms) {
  if (uniforms.size() != addresses.size()) throw std::invalid_argument("a uniform for each row");
  std::vector<const float*> rows;
  for (Address address : addresses) rows.push_back(at<const float>(address));
  return draw(rows, cols, uniforms);
}

// Each row's columns as the bytes of 32-bit integers.
nb::list highest_rows(Address x, int cols, const std::vector<int>& widths) {
  for (int width : widths)
    if (width < 1) throw std::invalid_argument("a width of at least 1");
  std::vector<std::vector<int>> found;
  {
    nb::gil_scoped_release unlocked;
    found = highest(at<const float>(x), cols, widths);
  }
  nb::list rows;
  for (const std::vector<int>& row : found) rows.append(nb::bytes(row.data(), row.size() * sizeof(int)));
  return rows;
}

}  // namespace

void bind_laws(nb::module_& m) {
  const auto unlocked = nb::call_guard<nb::gil_scoped_release>();
  m.def("weigh_rows", &weigh, unlocked);
  m.def("draw", &draw_rows, unlocked);
  m.def("philox", &philox);
  m.def("residuals", &residual_rows, unlocked);
  m.def("highest", &highest_rows);
}

}  // namespace slipstream
