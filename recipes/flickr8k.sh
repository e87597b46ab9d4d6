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

# pictures, then further settings
tune() {
    local count=$1 without=()
    shift
    if [[ $count -lt 6000 ]]; then
        python3 - "$data" "$count" "$out/without-$count.txt" <<'PYTHON'
import random
import sys

from meshcap.data import read_dataset

data, count, file = sys.argv[1], int(sys.argv[2]), sys.argv[3]
ids = sorted(sample.id for sample in read_dataset(data).split("train"))
random.Random(0).shuffle(ids)
with open(file, "w") as without:
    without.writelines(f"{id}\n" for id in ids[count:])
PYTHON
        without=(--without "$out/without-$count.txt")
    fi
    meshcap train "$data" --from default --out "$out/$count" "${without[@]}" --seed 1 "$@"
    meshcap evaluate "$out/$count" "$data" --split test --out "$out/$count/test"
}

gentle=(--set run.patience=0 --set run.compile=false --set run.precision=bfloat16 --set scst.augment=0.25 --set xe.augment=0.5
    --set xe.region_dropout=0.1 --set xe.ema=0.99 --set xe.layer_decay=0.85 --set scst.layer_decay=0.85)
meshcap evaluate default "$data" --split test --out "$out/0"
tune 100 "${gentle[@]}" --xe-steps 30 --scst-steps 60 --batch-size 50 --set scst.batch=50 --lr 5e-5 --set xe.lr_vision=1e-5 \
    --scst-lr 2e-5 --set scst.lr_vision=5e-6 --set scst.frozen_stages=6 --set scst.ema=0.99 --set run.validate_every=15
tune 1000 "${gentle[@]}" --xe-steps 120 --scst-steps 320 --batch-size 64 --set scst.batch=64 --lr 1e-4 --set xe.lr_vision=2e-5 \
    --scst-lr 3e-5 --set scst.lr_vision=1e-5 --set scst.ema=0.99 --set run.validate_every=40
tune 6000
