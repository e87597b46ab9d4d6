#!/usr/bin/env bash
# How many pictures of one's own are worth what: the packaged captioner, trained on with 100, 1,000 and 6,000 pictures of
# Flickr8k. One to seven minutes each, side by side on one H200; other settings that were tried: docs/LOG.md.
#
#   recipes/flickr8k.sh dataset_flickr8k.json PICTURES OUT
set -euo pipefail
captions=$1 pictures=$2 out=$3
data=$out/packed
mkdir -p "$out"
meshcap data pack "$captions" --out "$data" --pictures "$pictures" --size 256 --format jpg --quality 85

python3 - "$data" "$out" <<'PYTHON'
import random
import sys

from meshcap.data import read_dataset

data, out = sys.argv[1:]
ids = sorted(sample.id for sample in read_dataset(data).split("train"))
random.Random(0).shuffle(ids)
for count in (100, 1000):
    with open(f"{out}/without-{count}.txt", "w") as without:
        without.writelines(f"{id}\n" for id in ids[count:])
PYTHON

meshcap train "$data" --from default --out "$out/100" --without "$out/without-100.txt" --seed 1 --set run.patience=0 \
    --set xe.augment=0.5 --set scst.augment=0.25 --set xe.region_dropout=0.1 --set xe.ema=0.99 --set scst.ema=0.99 \
    --set xe.layer_decay=0.85 --set scst.layer_decay=0.85 --set run.compile=false --set run.precision=bfloat16 \
    --xe-steps 30 --batch-size 50 --lr 5e-5 --set xe.lr_vision=1e-5 --set run.validate_every=15 \
    --scst-steps 60 --set scst.batch=50 --scst-lr 2e-5 --set scst.lr_vision=5e-6 --set scst.frozen_stages=6
meshcap train "$data" --from default --out "$out/1000" --without "$out/without-1000.txt" --seed 1 --set run.patience=0 \
    --set xe.augment=0.5 --set scst.augment=0.25 --set xe.region_dropout=0.1 --set xe.ema=0.99 --set scst.ema=0.99 \
    --set xe.layer_decay=0.85 --set scst.layer_decay=0.85 --set run.compile=false --set run.precision=bfloat16 \
    --xe-steps 120 --batch-size 64 --lr 1e-4 --set xe.lr_vision=2e-5 --set run.validate_every=40 \
    --scst-steps 320 --set scst.batch=64 --scst-lr 3e-5 --set scst.lr_vision=1e-5
meshcap train "$data" --from default --out "$out/6000" --seed 1

meshcap evaluate default "$data" --split test --out "$out/0"
for count in 100 1000 6000; do
    meshcap evaluate "$out/$count" "$data" --split test --out "$out/$count/test"
done
