package main

import (
	"bytes"
	"cmp"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"os"
	"slices"
)

// shrink rewrites a PNG with the 256 colours that it has most of, each other pixel with
// the nearest of them. A page has few colours, and the shades of its letters are near to
// others.
func shrink(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	picture, err := png.Decode(bytes.NewReader(text))
	if err != nil {
		return fmt.Errorf("reading %s: %w", path, err)
	}
	frequent := map[color.RGBA]int{}
	bounds := picture.Bounds()
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			r, g, b, _ := picture.At(x, y).RGBA()
			frequent[color.RGBA{uint8(r >> 8), uint8(g >> 8), uint8(b >> 8), 255}]++
		}
	}
	colours := make([]color.RGBA, 0, len(frequent))
	for c := range frequent {
		colours = append(colours, c)
	}
	slices.SortFunc(colours, func(a, b color.RGBA) int { return cmp.Compare(frequent[b], frequent[a]) })
	var palette color.Palette
	for _, c := range colours[:min(256, len(colours))] {
		palette = append(palette, c)
	}
	small := image.NewPaletted(bounds, palette)
	draw.Draw(small, bounds, picture, bounds.Min, draw.Src)
	var out bytes.Buffer
	encoder := png.Encoder{CompressionLevel: png.BestCompression}
	if err := encoder.Encode(&out, small); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return os.WriteFile(path, out.Bytes(), 0o644)
}
