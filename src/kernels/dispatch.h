// From a level to its functions.
#pragma once

#include "cpu.h"
#include "level.h"

namespace slipstream {

const LevelTable* table_of(Level level);          // null where it was not compiled
const PromptTable* prompt_table_of(Level level);  // null where prompts are multiplied as all rows are

}  // namespace slipstream
