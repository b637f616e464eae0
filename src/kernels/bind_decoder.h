// The decoder's part of the Python module.
#pragma once

#include <nanobind/nanobind.h>

namespace slipstream {

void bind_decoder(nanobind::module_& m);
void bind_attention(nanobind::module_& m);
void bind_laws(nanobind::module_& m);

}  // namespace slipstream
