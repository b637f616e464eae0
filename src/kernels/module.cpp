// What Python sees of the kernels. Rows cross as addresses of contiguous float32 or bfloat16 memory, which the Python
// side has checked; the interpreter's lock is released while threads work.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bind_decoder.h"
#include "cpu.h"
#include "gemm.h"
#include "measure.h"
#include "multiply.h"
#include "pack.h"
#include "pool.h"

namespace nb = nanobind;
using namespace slipstream;

namespace {

template <class T>
T* at(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

std::vector<std::string> levels() {
  std::vector<std::string> all;
  for (Level each : available_levels()) all.push_back(name(each));
  return all;
}

// Packs in every thread: each its own blocks of 32 outputs, aligned to where the rows go.
void pack_in_threads(Matrix& matrix, Source source, uintptr_t data, int first, int rows) {
  pack_rows(matrix, source, at<uint8_t>(data), first, 0);  // a pair that does not fit throws here
  if (rows < 0 || first + rows > matrix.out) throw std::invalid_argument("rows outside the matrix");
  size_t bytes = row_bytes(source, matrix.in);
  int first_block = first / kColumns, blocks = (first + rows + kColumns - 1) / kColumns - first_block;
  Pool::instance().run([&](Slice slice) {
    Range range = share(blocks, slice);
    int begin = std::max(first, (first_block + range.begin) * kColumns);
    int end = std::min(first + rows, (first_block + range.end) * kColumns);
    if (begin < end) pack_rows(matrix, source, at<uint8_t>(data) + (begin - first) * bytes, begin, end - begin);
  });
}

void unpack_rows(const Matrix& matrix, const std::vector<int>& outputs, uintptr_t values) {
  float* to = at<float>(values);
  for (int output : outputs) {
    if (output < 0 || output >= matrix.out) throw std::invalid_argument("rows outside the matrix");
    unpack_row(matrix, output, to);
    to += matrix.in;
  }
}

Input& scratch(int rows, int cols) {
  static thread_local Input input;
  input.reserve(rows, cols);
  return input;
}

void linear(const Matrix& matrix, uintptr_t x, int rows, uintptr_t y, bool prompt) {
  Input& input = scratch(rows, matrix.in);
  Pool& pool = Pool::instance();
  const Role role = prompt ? Role::prompt : Role::decoded;
  pool.run([&](Slice slice) {
    prepare(form_of(matrix.kind, role), at<float>(x), matrix.in, rows, matrix.in, input, slice);
    pool.barrier();
    multiply(matrix, input, rows, at<float>(y), matrix.out, role, slice);
  });
}

}  // namespace

NB_MODULE(_native, m) {
  nb::enum_<Kind>(m, "Kind")
      .value("bf16", Kind::bf16)
      .value("q4", Kind::q4)
      .value("q8", Kind::q8)
      .value("q4a8", Kind::q4a8)
      .value("w8a8", Kind::w8a8);
  nb::enum_<Source>(m, "Source")
      .value("float32", Source::float32)
      .value("bfloat16", Source::bfloat16)
      .value("q4_0", Source::gguf_q4_0)
      .value("q4_1", Source::gguf_q4_1)
      .value("q4_k", Source::gguf_q4_k)
      .value("q8_0", Source::gguf_q8_0)
      .value("q5_0", Source::gguf_q5_0)
      .value("q6_k", Source::gguf_q6_k);
  nb::class_<Matrix>(m, "Matrix")
      .def_ro("kind", &Matrix::kind)
      .def_ro("out", &Matrix::out)
      .def_ro("cols", &Matrix::in)
      .def_prop_ro("nbytes", &Matrix::bytes)
      .def("pack", &pack_in_threads, nb::call_guard<nb::gil_scoped_release>())
      .def("unpack", [](const Matrix& matrix, uintptr_t values) { unpack(matrix, at<float>(values)); })
      .def("unpack_rows", &unpack_rows);
  m.def("row_bytes", &row_bytes);
  m.def("matrix", [](Kind kind, Source source, int out, int in, uintptr_t bias) {
    return make_matrix(kind, scales_for(kind, source), out, in, at<float>(bias));
  });
  m.def("linear", &linear, nb::call_guard<nb::gil_scoped_release>());
  m.def("levels", &levels);
  m.def("level", [] { return std::string(name(level())); });
  m.def("set_level", &set_level);
  m.def("threads", [] { return Pool::instance().threads(); });
  m.def("set_threads", [](int count) { Pool::instance().set_threads(count); });
  m.def("read_bandwidth", &read_bandwidth, nb::call_guard<nb::gil_scoped_release>());
  m.def("pass_seconds", &pass_seconds, nb::call_guard<nb::gil_scoped_release>());
  bind_decoder(m);
  bind_laws(m);
}
