// The end of a chunk of rows: the last norm, logits, and where each row has its peak.
#include <algorithm>
#include <cmath>

#include "forward.h"

namespace slipstream {

namespace {

// NaN is above all: a row that holds one has no peak.
void raise(Peak& best, Peak other) {
  const bool higher = other.value > best.value || (other.value == best.value && other.at < best.at);
  if (best.value == best.value && (other.value != other.value || higher)) best = other;
}

}  // namespace

void Forward::finish(Slice slice) {
  const Range mine = share(rows_, slice);
  for (int row = mine.begin; row < mine.end; row++) {
    add_branch(decoder_.layers().back().mlp_out, row, slice);
    tap(static_cast<int>(decoder_.layers().size()), row, residual(row));
    float* normed = work_.row(slice);
    ops_.rms_norm(residual(row), decoder_.norm().data(), shape_.eps, shape_.hidden, normed);
    tap(-1, row, normed);
    if (pass_.logits) prepare_row(decoder_.head().kind(), normed, row, shape_.hidden, work_.input);
  }
  if (!pass_.logits) return;
  sync();
  read_head(slice);
}

void Forward::read_head(Slice slice) {
  float* logits = pass_.logits + static_cast<size_t>(first_) * shape_.vocab;
  int at = 0;
  for (const auto& part : decoder_.head().parts) {
    for (Tasks tasks(part->blocks(), 1, slice); tasks.next();) {
      const Range now = tasks.now();
      multiply_blocks(*part, work_.input, rows_, logits + at, shape_.vocab, now);
      settle(logits, {at + now.begin * kColumns, at + std::min(now.end * kColumns, part->out)}, slice);
    }
    at += part->out;
  }
}

// Caps logits and looks for their peaks, in the thread that has just computed them: they are in its cache.
void Forward::settle(float* logits, Range columns, Slice slice) {
  const int count = columns.end - columns.begin;
  float* x = logits + columns.begin;
  for (int row = 0; row < rows_ && count > 0; row++, x += shape_.vocab) {
    if (shape_.logit_cap > 0) ops_.cap(x, shape_.logit_cap, count);
    if (peaks_.empty()) continue;
    const Peak found = ops_.peak(x, count);
    raise(peaks_[slice.index * rows_ + row], {found.value, columns.begin + found.at});
  }
}

void Forward::tell_peaks() {
  for (int row = 0; row < rows_ && !peaks_.empty(); row++) {
    Peak& best = peaks_[row];
    for (int at = row + rows_; at < static_cast<int>(peaks_.size()); at += rows_) raise(best, peaks_[at]);
    pass_.peaks[first_ + row] = std::isfinite(best.value) ? best.at : -1;
  }
}

}  // namespace slipstream
