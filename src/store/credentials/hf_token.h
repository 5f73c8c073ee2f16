// The token for Hugging Face.
#pragma once

#include "base/environment.h"
#include "base/secret.h"

namespace weightwire {

// HF_TOKEN, or the file that "hf auth login" wrote: HF_TOKEN_PATH, else $HF_HOME/token, else
// ~/.cache/huggingface/token. Empty if there is none.
[[nodiscard]] Secret HfToken(const Environment& environment);

}  // namespace weightwire
