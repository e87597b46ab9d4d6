#!/usr/bin/env bash
# The captioner in the package, from pictures to files: COCO, some 20 minutes of one H200 and half an hour of two CPU threads.
#
#   recipes/coco.sh dataset_coco.json train2017 OUT
#
# dataset_coco.json is Karpathy's file; train2017 holds COCO's pictures, of any size. Pictures that are not there are
# left out, so train2017 alone gives 109,488 + 4,392 + 4,407 of the 123,287 pictures.
set -euo pipefail
captions=$1 pictures=$2 out=$3
mkdir -p "$out"

# Small pictures, once (6 minutes on two CPU threads, 670 MB); the same command goes on where it was stopped.
meshcap data pack "$captions" "$out/packed" --pictures "$pictures" \
    --size 256 --format avif --quality 38 --shard-mb 64 --skip-broken

# Karpathy's split has a few training pictures twice, once in val or test: they are not learned from. (Exit code 1 says
# that there are some.)
meshcap data check "$out/packed" --leave-out "$out/without.txt" || [[ $? -eq 1 ]]

# About 170 s until the first step (reading the pictures, compiling), 353 s of cross-entropy (4,300 pictures/s) and 519 s of
# self-critical training (3,000 to 3,500 pictures/s) with their validations, 33 s of compiling between them. --resume goes on
# after whatever happens.
meshcap train "$out/packed" --without "$out/without.txt" --out "$out/run" --seed 1 \
    --model m2 --set d_model=448 --set heads=7 --set d_ff=1536 --set slots=40 --set tied_words=true \
    --vision efficientnet-lite2 --size 260 --train-vision --set frozen_stages=2 \
    --min-count 5 --max-words 9500 \
    --batch 256 --set captions=5 --xe-steps 5600 --lr 5e-4 --set lr_vision=1.5e-4 \
    --set dropout=0.1 --set label_smoothing=0.1 --set augment=0.5 --set region_dropout=0.1 --set ema=0.999 \
    --scst-steps 6400 --set scst_batch=256 --samples 5 --scst-lr 5e-5 --set scst_lr_vision=1.5e-5 \
    --set scst_augment=0.25 --set scst_ema=0.999 --set xe_weight=0 \
    --set validate_every=1400 --set patience=0 --set checkpoint_every=4000 \
    --set compile=true --set precision=bfloat16

# Between the model before self-critical training and the one after it: chosen on val.
meshcap blend "$out/run/before-scst" "$out/run" --data "$out/packed" --split val --shares 0,0.4,0.6,0.7,0.8,0.9,1
meshcap blend "$out/run/before-scst" "$out/run" --shares 0.7 --out "$out/blend"

# What ships: weights of 8 bits, and a confidence that was measured.
meshcap quantise "$out/blend" "$out/default" --bits 8
meshcap evaluate "$out/default" "$out/packed" --split val --out "$out/val"
meshcap calibrate "$out/default" "$out/packed" --captions "$out/val/captions-val.json" --plot "$out/reliability.svg"

# Once, when everything is decided: test pictures as they are, not as they were packed.
meshcap evaluate "$out/default" "$captions" --pictures "$pictures" --split test --out "$out/test"
