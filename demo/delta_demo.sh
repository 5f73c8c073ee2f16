#!/usr/bin/env bash
# One real training step as a delta: made, looked at, applied, compared. Called by ./dev demo, which builds first.
set -euo pipefail
cd "$(dirname "$0")/.."
weightwire=${WEIGHTWIRE:-build/weightwire}
old=tests/data/596m-master-10.old.safetensors
new=tests/data/596m-master-10.new.safetensors
other=tests/data/596m-pure-10.old.safetensors
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

step() { printf '\n== %s\n' "$*"; }
digest() { "$weightwire" digest "$1" | awk '$1 == "digest" { print $2 }'; }
# What the command prints, without the temporary folder's name.
shown() { "$weightwire" "$@" 2>&1 | sed "s|$folder/||"; }

step "Parts of a bf16 model before and after one RL step. What changed, and what does it cost to send?"
shown diff "$old" "$new" -o "$folder/step.delta"

step "What is in the delta?"
shown inspect "$folder/step.delta" --base "$old" | sed '/^table set/,$d'

step "Somewhere else, where only the old weights and the delta are: apply."
cp "$old" "$folder/base.safetensors"
shown apply "$folder/base.safetensors" "$folder/step.delta" -o "$folder/copy.safetensors"

step "On other weights of the same shape the delta is refused, and nothing is written."
status=0
shown apply "$other" "$folder/step.delta" -o "$folder/wrong.safetensors" || status=$?
if ((status != 6)) || [[ -e "$folder/wrong.safetensors" ]]; then
  echo "demo: the exit status should have been 6 (another base), with nothing written; it was $status" >&2
  exit 1
fi

step "Are they the same weights? The digests of the trainer's file and of the copy:"
ours=$(digest "$new") theirs=$(digest "$folder/copy.safetensors")
printf 'trainer  %s\ncopy     %s\n\n' "$ours" "$theirs"
if [[ "$ours" != "$theirs" ]]; then
  echo "demo: the copy differs" >&2
  exit 1
fi
echo "Equal: the copy is the new state, from a delta of $(stat -c %s "$folder/step.delta") bytes instead of $(stat -c %s "$new")."
