#include "pack.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "groups.h"
#include "half.h"
#include "layout.h"

namespace slipstream {
namespace {

using namespace layout;

bool four_bits(Kind kind) { return kind == Kind::q4 || kind == Kind::q4a8; }
bool eight_bits(Kind kind) { return kind == Kind::q8 || kind == Kind::w8a8; }

int group_bytes(const Matrix& matrix) {
  if (matrix.kind == Kind::bf16) return kBf16Group;
  if (eight_bits(matrix.kind)) return kEightGroup;
  return matrix.scales == Scales::super ? kSuperGroup : kHalfGroup;
}

size_t group_offset(const Matrix& matrix, int group) {
  if (matrix.scales == Scales::super) return super_offset(group);
  return static_cast<size_t>(group) * group_bytes(matrix);
}

size_t block_bytes(const Matrix& matrix) {
  size_t codes = static_cast<size_t>(matrix.groups()) * group_bytes(matrix);
  return matrix.scales == Scales::super ? codes + static_cast<size_t>(matrix.groups() / kSuperGroups) * kHeader : codes;
}

// The place of one output's column: its block, and the column inside it.
struct Column {
  uint8_t* block;
  int column;
  int tile() const { return column / kTileColumns; }
  int lane() const { return column % kTileColumns * 4; }
};

Column column_of(const Matrix& matrix, int output) {
  uint8_t* codes = const_cast<uint8_t*>(matrix.codes.as());
  return {codes + output / kColumns * block_bytes(matrix), output % kColumns};
}

void store16(uint8_t* to, uint16_t value) { std::memcpy(to, &value, 2); }
uint16_t load16(const uint8_t* from) {
  uint16_t value;
  std::memcpy(&value, from, 2);
  return value;
}

size_t bf16_place(Column c, int i) { return c.tile() * 1024 + i / 2 * kVector + c.lane() + i % 2 * 2; }
size_t eight_place(Column c, int i) { return c.tile() * 512 + i / 4 * kVector + c.lane() + kQuad[i % 4]; }

// The byte of input i, and whether it is the byte's high nibble.
size_t four_place(Column c, int i) { return c.tile() * 256 + i / 4 % 4 * kVector + c.lane() + kQuad[i % 4]; }
bool high_nibble(int i) { return i >= 16; }

uint32_t load32(const void* from) {
  uint32_t value;
  std::memcpy(&value, from, 4);
  return value;
}

// Four bytes in the order of kQuad: the middle ones change places.
void store_quad(uint8_t* to, uint32_t quad) {
  static_assert(kQuad[1] == 2 && kQuad[2] == 1, "the order of a quad");
  quad = (quad & 0xff0000ff) | (quad & 0xff00) << 8 | (quad >> 8 & 0xff00);
  std::memcpy(to, &quad, 4);
}

void put_four(uint8_t* codes, Column c, const uint8_t* four) {
  for (int i = 0; i < 16; i += 4) store_quad(codes + four_place(c, i), load32(four + i) | load32(four + 16 + i) << 4);
}

void put_half(uint8_t* codes, Column c, const GroupCodes& group) {
  put_four(codes, c, group.four);
  store16(codes + kFourCodes + 2 * c.column, group.d);
  store16(codes + kFourCodes + 64 + 2 * c.column, group.m);
}

void put_eight(uint8_t* codes, Column c, const GroupCodes& group) {
  for (int i = 0; i < kGroup; i += 4) store_quad(codes + eight_place(c, i), load32(group.eight + i));
  store16(codes + kEightCodes + 2 * c.column, group.d);
}

void put_super(Column c, int first_group, const SuperCodes& super) {
  uint8_t* header = c.block + super_offset(first_group) - kHeader;
  store16(header + 2 * c.column, super.d);
  store16(header + 64 + 2 * c.column, super.m);
  for (int g = 0; g < kSuperGroups; g++) {
    uint8_t* codes = c.block + super_offset(first_group + g);
    put_four(codes, c, super.four[g]);
    codes[kFourCodes + c.column] = super.scale[g];
    codes[kFourCodes + kColumns + c.column] = super.min[g];
  }
}

void pack_floats(const Matrix& matrix, const float* values, Column c, int group) {
  uint8_t* codes = c.block + group_offset(matrix, group);
  GroupCodes rounded;
  if (matrix.kind == Kind::bf16) {
    for (int i = 0; i < kGroup; i++) store16(codes + bf16_place(c, i), bf16_of_float(values[i]));
  } else if (four_bits(matrix.kind)) {
    group_ops().round_to_four(values, rounded);
    put_half(codes, c, rounded);
  } else {
    group_ops().round_to_eight(values, rounded);
    put_eight(codes, c, rounded);
  }
}

struct Shape {
  int values, bytes;  // of a block
};

Shape shape_of(Source source) {
  switch (source) {
    case Source::float32: return {1, 4};
    case Source::bfloat16: return {1, 2};
    case Source::gguf_q4_0: return {32, 18};
    case Source::gguf_q4_1: return {32, 20};
    case Source::gguf_q4_k: return {256, 144};
    case Source::gguf_q5_0: return {32, 22};
    case Source::gguf_q6_k: return {256, 210};
    default: return {32, 34};
  }
}

// The values of one group whose block is at `from`; inputs the matrix lacks are zeros.
void read_values(Source source, const uint8_t* from, int group, int count, float* values) {
  const GroupOps& ops = group_ops();
  switch (source) {
    case Source::float32: std::memcpy(values, from, static_cast<size_t>(count) * 4); return;
    case Source::gguf_q5_0: return ops.values_of_q5_0(from, values);
    case Source::gguf_q6_k: return ops.values_of_q6_k(from, group % kSuperGroups, values);
    case Source::gguf_q8_0: return ops.values_of_q8_0(from, values);
    default: break;
  }
  for (int i = 0; i < count; i++) values[i] = float_of_bf16(load16(from + 2 * i));
}

void keep_codes(const Matrix& matrix, Source source, const uint8_t* from, int group, Column c) {
  if (source == Source::gguf_q4_k) {
    SuperCodes super;
    read_q4_k(from, super);
    return put_super(c, group, super);
  }
  GroupCodes read;
  uint8_t* codes = c.block + group_offset(matrix, group);
  if (source == Source::gguf_q8_0) {
    read_q8_0(from, read);
    return put_eight(codes, c, read);
  }
  source == Source::gguf_q4_0 ? read_q4_0(from, read) : read_q4_1(from, read);
  put_half(codes, c, read);
}

// Whether these rows are rounded to the kind; the codes of the others are kept.
bool needs_rounding(Source source, Kind kind) {
  if (source == Source::gguf_q8_0) return !eight_bits(kind);
  return source == Source::float32 || source == Source::bfloat16 || source == Source::gguf_q5_0 ||
         source == Source::gguf_q6_k;
}

// Packs one group of a row, or the eight of a super-block.
void pack_group(const Matrix& matrix, Source source, const uint8_t* row, int group, Column c) {
  const Shape shape = shape_of(source);
  const uint8_t* from = row + static_cast<size_t>(group * kGroup / shape.values) * shape.bytes;
  if (!needs_rounding(source, matrix.kind)) return keep_codes(matrix, source, from, group, c);
  float values[kGroup] = {};
  read_values(source, from, group, std::min(kGroup, matrix.in - group * kGroup), values);
  pack_floats(matrix, values, c, group);
}

void refuse(const std::string& why) { throw std::invalid_argument(why); }

void check(const Matrix& matrix, Source source, int first, int rows) {
  if (first < 0 || rows < 0 || first + rows > matrix.out) refuse("rows outside the matrix");
  if (scales_for(matrix.kind, source) != matrix.scales) refuse("this source keeps its scales in another form");
}

// What one packed weight stands for.
float value_at(const Matrix& matrix, Column c, int k) {
  int group = k / kGroup, i = k % kGroup;
  const uint8_t* codes = c.block + group_offset(matrix, group);
  if (matrix.kind == Kind::bf16) return float_of_bf16(load16(codes + bf16_place(c, i)));
  if (eight_bits(matrix.kind))
    return static_cast<int8_t>(codes[eight_place(c, i)]) * float_of_half(load16(codes + kEightCodes + 2 * c.column));
  int both = codes[four_place(c, i)], code = high_nibble(i) ? both >> 4 : both & 15;
  const uint8_t* scales = codes + kFourCodes;
  if (matrix.scales == Scales::half)
    return code * float_of_half(load16(scales + 2 * c.column)) + float_of_half(load16(scales + 64 + 2 * c.column));
  const uint8_t* header = c.block + super_offset(group / kSuperGroups * kSuperGroups) - kHeader;
  float d = float_of_half(load16(header + 2 * c.column)) * scales[c.column];
  float m = float_of_half(load16(header + 64 + 2 * c.column)) * scales[kColumns + c.column];
  return code * d + m;
}

}  // namespace

size_t row_bytes(Source source, int cols) {
  const Shape shape = shape_of(source);
  if (cols % shape.values)
    refuse("a GGUF row of " + std::to_string(cols) + " values is not whole blocks of " + std::to_string(shape.values));
  return static_cast<size_t>(cols) / shape.values * shape.bytes;
}

Scales scales_for(Kind kind, Source source) {
  bool four = source == Source::gguf_q4_0 || source == Source::gguf_q4_1 || source == Source::gguf_q4_k;
  if (four && !four_bits(kind)) refuse("4-bit GGUF codes pack as q4 or q4a8 only");
  if (kind == Kind::bf16) return Scales::none;
  return source == Source::gguf_q4_k ? Scales::super : Scales::half;
}

Matrix make_matrix(Kind kind, Scales scales, int out, int in, const float* bias) {
  if (out < 1 || in < 1) refuse("a matrix needs at least one output and one input");
  if (scales == Scales::super && in % (kGroup * kSuperGroups)) refuse("super-block scales need inputs in whole 256s");
  Matrix matrix;
  matrix.kind = kind;
  matrix.scales = scales;
  matrix.out = out;
  matrix.in = in;
  matrix.codes.reserve(matrix.blocks() * block_bytes(matrix));
  if (bias) {
    matrix.bias.reserve(sizeof(float) * matrix.blocks() * kColumns);
    std::memcpy(matrix.bias.as(), bias, sizeof(float) * out);
  }
  return matrix;
}

void pack_rows(Matrix& matrix, Source source, const void* data, int first, int rows) {
  check(matrix, source, first, rows);
  const size_t bytes = row_bytes(source, matrix.in);
  const int step = source == Source::gguf_q4_k ? kSuperGroups : 1;
  for (int begin = 0, end; begin < rows; begin = end) {
    end = std::min(rows, begin + kColumns - (first + begin) % kColumns);
    for (int group = 0; group < matrix.groups(); group += step)  // a block's rows together: they write the same lines
      for (int r = begin; r < end; r++)
        pack_group(matrix, source, static_cast<const uint8_t*>(data) + r * bytes, group, column_of(matrix, first + r));
  }
}

void unpack_row(const Matrix& matrix, int output, float* values) {
  const Column c = column_of(matrix, output);
  for (int k = 0; k < matrix.in; k++) values[k] = value_at(matrix, c, k);
}

void unpack(const Matrix& matrix, float* values) {
  for (int output = 0; output < matrix.out; output++)
    unpack_row(matrix, output, values + static_cast<size_t>(output) * matrix.in);
}

}  // namespace slipstream
