#!/usr/bin/env bash
# The captioner in the package: CLIP's image encoder and an M² trained on COCO, 22 minutes of one H200 for the two stages.
#
# From the root of the repository:
#
#   recipes/coco.sh dataset_coco.json train2017 objects.json CLIP OUT
#
# dataset_coco.json is Karpathy's file; train2017 holds COCO's pictures (here: squashed to 256 × 256 pixels). Pictures
# that are not there are left out, so train2017 alone gives 109,488 + 4,392 + 4,407 of the 123,287 pictures.
# objects.json: which of COCO's 80 objects are in each picture, {id: [names]}. CLIP: a folder of Hugging Face's with
# the image tower of openai/clip-vit-base-patch16. Packing and checking can be done beforehand, on any machine.
set -euo pipefail
captions=$1 pictures=$2 objects=$3 clip=$4 out=$5
mkdir -p "$out"

# Pictures in shards, once, as they are. The same command goes on where it was stopped.
meshcap data pack "$captions" --out "$out/packed" --pictures "$pictures" --size 0 --shard-mb 64 --skip-broken

# Karpathy's split has a few training pictures twice, once in val or test: ten of them are not learned from. (Exit code
# 1 says that there are some.)
meshcap data check "$out/packed" --leave-out "$out/without.txt" || [[ $? -eq 1 ]]

# Cross-entropy: 4,007 steps of 256 pictures × 5 captions, 100 ms each (2,550 pictures/s), everything learns, lower
# layers of the encoder more slowly. Self-critical training: 8,741 steps of 256 × 5 drawn captions, 91 ms each (2,800
# pictures/s); the encoder's first six stages are frozen; a caption loses 0.2 for each object it names that is not there
# and gains 0.05 for each that is, beside CIDEr-D. (The numbers of steps are what fitted into the time that was set.)
meshcap train "$out/packed" --without "$out/without.txt" --out "$out/run" --seed 1 \
    --arch m2 --set model.d_model=448 --set model.heads=7 --set model.d_ff=1536 --set model.slots=40 --set model.tied_words=true \
    --vision "hf:$clip" --size 224 --set data.size=256 --set data.min_count=5 --set data.vocabulary=9500 \
    --batch-size 256 --set xe.captions=5 --xe-steps 4007 --lr 5e-4 --set xe.lr_vision=4e-5 --set xe.layer_decay=0.85 \
    --set model.dropout=0.1 --set xe.label_smoothing=0.1 --set xe.augment=0.7 --set xe.compress=0.25 \
    --set xe.region_dropout=0.21 --set xe.ema=0.999 \
    --scst-steps 8741 --set scst.batch=256 --set scst.samples=5 --set scst.max_length=18 --scst-lr 5e-5 \
    --set scst.lr_vision=1e-5 --set scst.layer_decay=0.85 --set scst.frozen_stages=6 --set scst.augment=0.5 \
    --set scst.compress=0.25 --set scst.region_dropout=0.15 --set scst.ema=0.9995 --set scst.xe_weight=0 \
    --set "scst.objects=$objects" --set scst.object_penalty=0.2 --set scst.object_bonus=0.05 \
    --set data.val_pictures=1500 --set run.val_beams=2 --set run.validate_every=1500 --set run.patience=0 \
    --set run.checkpoint_every=5000 --set run.compile=true --set run.precision=bfloat16

# 8 bits for M², 6 for the encoder, then the confidence, measured on val with the file that ships.
python3 recipes/model_surgery.py quantise "$out/run" --bits 8 --vision-bits 6 --out "$out/small"
meshcap evaluate "$out/small" "$out/packed" --split val --out "$out/val" --calibrate
meshcap evaluate "$out/small" "$out/packed" --split test --out "$out/test"
