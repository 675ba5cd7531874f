/**
 * Lays sizes out as rectangles of the same area in a rectangle, as square as they can be ("squarified treemaps"). Sizes are positive, the
 * largest first. The same sizes give the same rectangles.
 */
export function squarify(sizes, x, y, width, height) {
  const total = sizes.reduce((sum, n) => sum + n, 0);
  const scale = (width * height) / total;
  const out = [];
  for (let from = 0; from < sizes.length; ) {
    const side = Math.min(width, height);
    let sum = 0;
    let worst = Infinity;
    let to = from;
    for (; to < sizes.length; to++) {
      const next = sum + sizes[to] * scale;
      const thick = next / side;
      const ratio = Math.max((sizes[from] * scale) / (thick * thick), (thick * thick) / (sizes[to] * scale));
      if (ratio > worst) break;
      worst = ratio;
      sum = next;
    }
    const thick = sum / side;
    let along = 0;
    for (let i = from; i < to; i++) {
      const long = (sizes[i] * scale) / thick;
      out.push(width >= height ? { x, y: y + along, w: thick, h: long } : { x: x + along, y, w: long, h: thick });
      along += long;
    }
    if (width >= height) {
      x += thick;
      width -= thick;
    } else {
      y += thick;
      height -= thick;
    }
    from = to;
  }
  return out;
}
