#!/usr/bin/env bash
# The captioner in the package, from pictures to files: COCO, 53 minutes of one H200 in four trainings, the rest on it or on a CPU.
#
#   recipes/coco.sh dataset_coco.json train2017 OUT
#
# dataset_coco.json is Karpathy's file; train2017 holds COCO's pictures, of any size. Pictures that are not there are
# left out, so train2017 alone gives 109,488 + 4,392 + 4,407 of the 123,287 pictures.
set -euo pipefail
captions=$1 pictures=$2 out=$3
mkdir -p "$out"

# Pictures in shards, once, as they are where they are small; larger ones are best made small first (--size 256 --format jpg
# --quality 90). The same command goes on where it was stopped.
meshcap data pack "$captions" "$out/packed" --pictures "$pictures" --size 0 --shard-mb 64 --skip-broken

# And badly compressed, a third of the bytes, for the other trainings: eyes that learned from such pictures lose less on them.
meshcap data pack "$captions" "$out/small" --pictures "$pictures" --size 256 --format avif --quality 45 --shard-mb 64 --skip-broken

# Karpathy's split has a few training pictures twice, once in val or test: they are not learned from. (Exit code 1 says
# that there are some.)
meshcap data check "$out/packed" --leave-out "$out/without.txt" || [[ $? -eq 1 ]]

# 22 minutes: some 180 s until the first step (reading the pictures, compiling), 312 s of cross-entropy (3,700 pictures/s), 72 s of
# compiling, 797 s of self-critical training (3,100 pictures/s), with their validations. --resume goes on after whatever happens.
# Half of the views look like badly compressed JPEG (compress), a fifth of the cells is hidden (region_dropout).
meshcap train "$out/packed" --without "$out/without.txt" --out "$out/run" --seed 1 \
    --model m2 --set d_model=448 --set heads=7 --set d_ff=1536 --set slots=40 --set tied_words=true \
    --vision efficientnet-lite2 --size 288 --train-vision --set frozen_stages=2 \
    --min-count 5 --max-words 9500 \
    --batch 256 --set captions=5 --xe-steps 4300 --lr 5e-4 --set lr_vision=1e-4 \
    --set dropout=0.1 --set label_smoothing=0.1 --set augment=0.7 --set compress=0.5 --set region_dropout=0.21 \
    --set ema=0.999 \
    --scst-steps 9400 --set scst_batch=256 --samples 5 --scst-lr 5e-5 --set scst_lr_vision=1.5e-5 \
    --set scst_augment=0.5 --set scst_region_dropout=0.21 --set scst_ema=0.999 --set xe_weight=0 \
    --set validate_every=1500 --set patience=0 --set checkpoint_every=5000 \
    --set compile=true --set precision=bfloat16

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
meshcap blend "$out/run/before-scst" "$out/more-words" --shares 0.75 --out "$out/blend"
meshcap sizes "$out/blend" --sizes 352 --through 256 --out "$out/larger"

# 13 minutes: some 100 s until the first step (compiled by a run before), 632 s of self-critical training (3,150 pictures/s). Words that are nearly said are raised first, by
# three quarters of what they lack, so that they are drawn, judged and learned where they are right.
meshcap words "$out/larger" "$out/small" --heard-split train --heard-pictures 4500 --limits 4.5 --price 0.4 --strength 0.75 \
    --out "$out/tried"
meshcap train "$out/small" --without "$out/without.txt" --from "$out/tried" --out "$out/learned" --seed 4 \
    --stages scst --min-count 1000000 --size 288 --train-vision --set frozen_stages=2 \
    --scst-steps 7600 --set scst_batch=256 --samples 5 --scst-lr 5e-5 --set scst_lr_vision=1.5e-5 \
    --set scst_augment=0.5 --set compress=0.25 --set scst_region_dropout=0.21 --set scst_ema=0.999 --set xe_weight=0 \
    --set word_bonus=0.3 --set word_most=2.5 --set word_share=0.7 --set word_often=0.0005 --set keep=last \
    --set validate_every=3800 --set patience=0 --set compile=true --set precision=bfloat16
meshcap sizes "$out/learned" --sizes 352 --through 256 --out "$out/shown"

# Once more, words that are nearly said, and right where they are: how far they are raised is chosen on val too.
heard=(--heard-split train,val --heard-pictures 5000 --more)
meshcap words "$out/shown" "$out/packed" "${heard[@]}" --data "$out/packed" --price 0.5 --limits 0,3,4.5
meshcap words "$out/shown" "$out/packed" "${heard[@]}" --price 0.5 --limits 4.5 --out "$out/wordier"

# And those that are likeliest to be right, by pictures that it did not learn from alone.
python "$(dirname "${BASH_SOURCE[0]}")/words.py" "$out/wordier" "$out/packed" "$out/wordiest" --most 320

# What ships: weights of 8 bits, and a confidence that was measured.
meshcap quantise "$out/wordiest" "$out/default" --bits 8
meshcap evaluate "$out/default" "$out/packed" --split val --out "$out/val"
meshcap calibrate "$out/default" "$out/packed" --captions "$out/val/captions-val.json" --plot "$out/reliability.svg"

# Once, when everything is decided: test pictures as they are (--size 0 packed their files unchanged).
meshcap evaluate "$out/default" "$out/packed" --split test --out "$out/test"
