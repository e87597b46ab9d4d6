#!/usr/bin/env bash
# How many pictures of one's own are worth what: the packaged captioner, trained on with 100, 1,000 and 6,000 pictures of
# Flickr8k. One to two minutes, side by side, on one H200, without compilation.
#
#   recipes/flickr8k.sh dataset_flickr8k.json PICTURES OUT
set -euo pipefail
captions=$1 pictures=$2 out=$3
data=$out/packed
mkdir -p "$out"
meshcap data pack "$captions" --out "$data" --pictures "$pictures" --size 256 --format jpg --quality 85

# pictures, steps of cross-entropy, self-critical steps, pictures of a step, steps between validations, the two learning rates
tune() {
    local without=()
    if [[ $1 -lt 6000 ]]; then
        python3 - "$data" "$1" "$out/without-$1.txt" <<'PYTHON'
import random
import sys

from meshcap.data import read_dataset

data, count, file = sys.argv[1], int(sys.argv[2]), sys.argv[3]
ids = sorted(sample.id for sample in read_dataset(data).split("train"))
random.Random(0).shuffle(ids)
with open(file, "w") as without:
    without.writelines(f"{id}\n" for id in ids[count:])
PYTHON
        without=(--without "$out/without-$1.txt")
    fi
    meshcap train "$data" --from default --out "$out/$1" "${without[@]}" --seed 1 --size 288 \
        --xe-steps "$2" --scst-steps "$3" --batch-size "$4" --set scst.batch="$4" --lr "$6" --set xe.lr_vision=3e-5 \
        --scst-lr "$7" --set scst.lr_vision=5e-6 --set scst.augment=0.25 --set scst.ema=0.99 \
        --set xe.augment=0.5 --set xe.region_dropout=0.1 --set xe.ema=0.99 --set run.validate_every="$5" --set run.patience=0 \
        --set run.compile=false --set run.precision=bfloat16
    meshcap evaluate "$out/$1" "$data" --split test --out "$out/$1/test"
}

meshcap evaluate default "$data" --split test --out "$out/0"
tune 100 30 60 50 30 2e-4 3e-5
tune 1000 60 160 64 80 2e-4 3e-5
tune 6000 200 440 128 220 2e-4 3e-5
