// A picture as the square of pixels that the model reads: meshcap/vision/preprocess.py, and Pillow's resizing.
//
// Pictures are { data, width, height }: 8-bit RGBA as a canvas has it.

export async function read(blob, { size, geometry, pre_resize: preResize }) {
  const picture = await decode(blob);
  let { width, height } = picture;
  // As Python reads them: JPEG at a half, a quarter or an eighth, very large ones of other formats smaller as well.
  const jpeg = new Uint8Array(await blob.slice(0, 2).arrayBuffer()).join() === "255,216";
  const least = Math.min(width, height);
  const factor = jpeg ? [8, 4, 2, 1].find((one) => least >= one * size) || 1
    : width * height > 16e6 ? Math.max(1, Math.floor(least / (2 * size))) : 1;
  return square(reduce(picture, factor, factor), size, geometry, preResize);
}

async function decode(blob) {
  let bitmap;
  try {
    bitmap = await createImageBitmap(blob, { colorSpaceConversion: "none" }); // upright, by EXIF
  } catch {
    throw new Error("this browser cannot read the picture: is it damaged, or of a format that browsers do not know?");
  }
  const { width, height } = bitmap;
  const pen = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
  pen.fillStyle = "white"; // what is transparent lies on white
  pen.fillRect(0, 0, width, height);
  pen.drawImage(bitmap, 0, 0);
  bitmap.close();
  return pen.getImageData(0, 0, width, height);
}

// The part of a picture that is seen: x1, y1, x2, y2.
function windowOf(geometry, width, height) {
  if (geometry === "squash") return [0, 0, width, height];
  const side = Math.min(width, height);
  return [(width - side) / 2, (height - side) / 2, (width + side) / 2, (height + side) / 2];
}

export function square(picture, size, geometry, preResize = 0) {
  if (preResize) return square(square(picture, preResize, geometry), size, "squash");
  if (picture.width === size && picture.height === size) return picture;
  let box = windowOf(geometry, picture.width, picture.height);
  const factors = [0, 1].map((axis) => Math.max(1, Math.trunc((box[axis + 2] - box[axis]) / size / 3)));
  if (Math.max(...factors) > 1) { // Pillow's reducing_gap: means of whole blocks first
    const limits = [picture.width, picture.height];
    const reach = [0, 1].map((axis) => 1.5 * ((box[axis + 2] - box[axis]) / size));
    const safe = [0, 1].map((axis) => Math.max(0, Math.floor(box[axis] - reach[axis])))
      .concat([0, 1].map((axis) => Math.min(limits[axis], Math.ceil(box[axis + 2] + reach[axis]))));
    picture = reduce(picture, ...factors, safe);
    box = box.map((edge, at) => (edge - safe[at % 2]) / factors[at % 2]);
  }
  return upright(upright(picture, size, box[0], box[2]), size, box[1], box[3]);
}

// Means of blocks of pixels; those at the right and lower edges may be smaller.
export function reduce(picture, across, down, [left, top, right, bottom] = [0, 0, picture.width, picture.height]) {
  if (across === 1 && down === 1) return picture;
  const width = Math.ceil((right - left) / across);
  const height = Math.ceil((bottom - top) / down);
  const data = new Uint8ClampedArray(4 * width * height);
  for (let y = 0; y < height; y += 1) {
    const [y1, y2] = [top + y * down, Math.min(top + (y + 1) * down, bottom)];
    for (let x = 0; x < width; x += 1) {
      const [x1, x2] = [left + x * across, Math.min(left + (x + 1) * across, right)];
      const count = (x2 - x1) * (y2 - y1);
      for (let channel = 0; channel < 3; channel += 1) {
        let sum = 0;
        for (let row = y1; row < y2; row += 1) {
          for (let at = 4 * (row * picture.width + x1) + channel; at < 4 * (row * picture.width + x2); at += 4) sum += picture.data[at];
        }
        data[4 * (y * width + x) + channel] = Math.floor((sum + count / 2) / count);
      }
    }
  }
  return { data, width, height };
}

// Rows resampled from start to end, and turned so that columns are next: twice is the whole.
function upright(picture, size, start, end) {
  const weights = coefficients(picture.width, size, start, end);
  const { width, height } = picture;
  const data = new Uint8ClampedArray(4 * size * height);
  for (let row = 0; row < height; row += 1) {
    for (let x = 0; x < size; x += 1) {
      const { first, shares } = weights[x];
      for (let channel = 0; channel < 3; channel += 1) {
        let sum = 2 ** 21;
        for (let at = 0; at < shares.length; at += 1) sum += picture.data[4 * (row * width + first + at) + channel] * shares[at];
        data[4 * (x * height + row) + channel] = Math.floor(sum / 2 ** 22);
      }
    }
  }
  return { data, width: height, height: size };
}

// Pillow's bicubic filter, in its whole numbers of 22 bits.
function coefficients(length, size, start, end) {
  const scale = (end - start) / size;
  const wide = Math.max(1, scale);
  return Array.from({ length: size }, (_, at) => {
    const centre = start + (at + 0.5) * scale;
    const first = Math.max(0, Math.trunc(centre - 2 * wide + 0.5));
    const last = Math.min(length, Math.trunc(centre + 2 * wide + 0.5));
    const raw = Array.from({ length: last - first }, (__, place) => bicubic((first + place - centre + 0.5) * (1 / wide)));
    const whole = 2 ** 22 * (1 / raw.reduce((a, b) => a + b, 0));
    return { first, shares: raw.map((share) => Math.trunc(share * whole + (share < 0 ? -0.5 : 0.5))) };
  });
}

function bicubic(given) {
  const x = Math.abs(given);
  if (x < 1) return ((1.5 * x) - 2.5) * x * x + 1;
  return x < 2 ? (((x - 5) * x + 8) * x - 4) * -0.5 : 0;
}
