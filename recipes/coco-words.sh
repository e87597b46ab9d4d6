#!/usr/bin/env bash
# The captioner in the package, from the one that recipes/coco.sh made: four more trainings for more words, 50 minutes of one H200, the
# rest on it or on a CPU.
#
#   recipes/coco-words.sh dataset_coco.json train2017 OUT     (as recipes/coco.sh was called)
set -euo pipefail
captions=$1 pictures=$2 out=$3

# The pictures badly compressed, a third of the bytes, for these trainings: eyes that learned from such pictures lose less on them.
meshcap data pack "$captions" "$out/small" --pictures "$pictures" --size 256 --format avif --quality 45 --shard-mb 64 --skip-broken

# 7 minutes: some 125 s until the first step, 300 s of self-critical training (3,300 pictures/s). Part of the way back to the model
# before self-critical training, which knows more words, and on from there with a bonus for words that are right and seldom said.
meshcap blend "$out/run/before-scst" "$out/run" --shares 0.6 --out "$out/halfway"
meshcap train "$out/small" --without "$out/without.txt" --from "$out/halfway" --out "$out/words" --seed 2 \
    --stages scst --min-count 1000000 --size 288 --train-vision --set frozen_stages=2 \
    --scst-steps 3800 --set scst_batch=256 --samples 5 --scst-lr 5e-5 --set scst_lr_vision=1.5e-5 \
    --set scst_augment=0.5 --set compress=0.25 --set scst_region_dropout=0.21 --set scst_ema=0.999 --set xe_weight=0 \
    --set word_bonus=0.4 --set word_share=0.25 --set keep=last --set validate_every=1900 --set patience=0 \
    --set compile=true --set precision=bfloat16

# 11 minutes: some 170 s until the first step, 480 s of self-critical training (2,900 pictures/s). Part of the way back again, which costs no
# CIDEr and makes drawn captions differ more, and on with a bonus that asks for all words alike.
meshcap blend "$out/run/before-scst" "$out/words" --shares 0.7 --out "$out/back"
meshcap train "$out/small" --without "$out/without.txt" --from "$out/back" --out "$out/more-words" --seed 3 \
    --stages scst --min-count 1000000 --size 288 --train-vision --set frozen_stages=2 \
    --scst-steps 5300 --set scst_batch=256 --samples 5 --scst-lr 5e-5 --set scst_lr_vision=1.5e-5 \
    --set scst_augment=0.5 --set compress=0.25 --set scst_region_dropout=0.21 --set scst_ema=0.999 --set xe_weight=0 \
    --set word_bonus=0.3 --set word_share=0.5 --set word_often=0.0005 --set keep=last --set validate_every=5300 \
    --set patience=0 --set compile=true --set precision=bfloat16

# A quarter of the way back, shown larger pictures than it learned from: chosen on val. The pictures it learned from had 256 pixels,
# so larger ones are first made as small (--through).
meshcap blend "$out/run/before-scst" "$out/more-words" --data "$out/packed" --split val --shares 0.7,0.85,1
meshcap blend "$out/run/before-scst" "$out/more-words" --shares 0.75 --out "$out/blend-3"
meshcap sizes "$out/blend-3" --sizes 352 --through 256 --out "$out/shown-3"

# 13 minutes: some 100 s until the first step (compiled by a run before), 632 s of self-critical training (3,150 pictures/s). Words that are nearly said are raised first, by
# three quarters of what they lack, so that they are drawn, judged and learned where they are right.
meshcap words "$out/shown-3" "$out/small" --heard-split train --heard-pictures 4500 --limits 4.5 --price 0.4 --strength 0.75 \
    --out "$out/tried"
meshcap train "$out/small" --without "$out/without.txt" --from "$out/tried" --out "$out/learned" --seed 4 \
    --stages scst --min-count 1000000 --size 288 --train-vision --set frozen_stages=2 \
    --scst-steps 7600 --set scst_batch=256 --samples 5 --scst-lr 5e-5 --set scst_lr_vision=1.5e-5 \
    --set scst_augment=0.5 --set compress=0.25 --set scst_region_dropout=0.21 --set scst_ema=0.999 --set xe_weight=0 \
    --set word_bonus=0.3 --set word_most=2.5 --set word_share=0.7 --set word_often=0.0005 --set keep=last \
    --set validate_every=3800 --set patience=0 --set compile=true --set precision=bfloat16
meshcap sizes "$out/learned" --sizes 352 --through 256 --out "$out/shown-4"

# Half of what was learned, half of where it began, with words raised in both; and from there twice, from other orders of the pictures and with
# other bonuses, all but the eyes' last stages frozen (19 minutes, side by side: each 8,400 steps at 2,200 pictures/s).
heard=(--heard-split train,val --heard-pictures 5000)
meshcap words "$out/shown-3" "$out/packed" "${heard[@]}" --price 0.6 --limits 3 --out "$out/raised-3"
meshcap words "$out/shown-4" "$out/packed" "${heard[@]}" --more --price 0.5 --limits 4.5 --out "$out/raised-4"
meshcap blend "$out/raised-3" "$out/raised-4" --shares 0.5 --out "$out/half"
twin() {
    meshcap train "$out/small" --without "$out/without.txt" --from "$out/half" --out "$out/twin-$1" --seed "$1" \
        --stages scst --min-count 1000000 --size 288 --train-vision --set frozen_stages=5 \
        --scst-steps 8400 --set scst_batch=256 --samples 5 --scst-lr 6e-5 --set scst_lr_vision=1.5e-5 --set scst_length=18 \
        --set scst_augment=0.5 --set compress=0.25 --set scst_region_dropout=0.21 --set scst_ema=0.9995 --set xe_weight=0 \
        --set word_bonus="$2" --set word_most=2.5 --set word_share=0.8 --set word_often="$3" --set keep=last \
        --set validate_every=4200 --set patience=0 --set compile=true --set precision=bfloat16
    meshcap sizes "$out/twin-$1" --sizes 352 --through 256 --out "$out/shown-$1"
}
twin 5 0.3 0.0008
twin 6 0.4 0.001

# A mean of the three: better than each.
meshcap blend "$out/shown-5" "$out/shown-6" --shares 0.7333 --out "$out/twins"
meshcap blend "$out/twins" "$out/raised-4" --shares 0.25 --out "$out/mean"

# And words that are likeliest to be right, by pictures that it did not learn from alone.
python "$(dirname "${BASH_SOURCE[0]}")/words.py" "$out/mean" "$out/packed" "$out/wordiest" --most 750

# What ships: weights of 8 bits, and a confidence that was measured.
meshcap quantise "$out/wordiest" "$out/default" --bits 8
meshcap evaluate "$out/default" "$out/packed" --split val --out "$out/val"
meshcap calibrate "$out/default" "$out/packed" --captions "$out/val/captions-val.json" --plot "$out/reliability.svg"

# Once, when everything is decided: test pictures as they are (--size 0 packed their files unchanged).
meshcap evaluate "$out/default" "$out/packed" --split test --out "$out/test"
