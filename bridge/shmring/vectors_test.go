package shmring

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// vector says what a ring's file holds after packets were put into it; an empty one is a mark.
type vector struct {
	Name    string
	Before  []int // lengths of packets that were put and taken before
	Packets []string
	Head    uint64
	Words   map[string]uint64
	At      int
	Bytes   string
}

func TestARingLooksAsTheProtocolSays(t *testing.T) {
	text, err := os.ReadFile("../../docs/vectors/v1.json")
	require.NoError(t, err)
	var file struct{ Rings []vector }
	require.NoError(t, json.Unmarshal(text, &file))
	require.NotEmpty(t, file.Rings)
	for _, v := range file.Rings {
		t.Run(v.Name, func(t *testing.T) {
			a, b := ends(t)
			for _, n := range v.Before {
				put(t, a, make([]byte, n))
				take(t, b)
			}
			for _, packet := range v.Packets {
				if packet == "" {
					a.Mark()
					continue
				}
				put(t, a, unhex(t, packet))
			}
			want := unhex(t, v.Bytes)
			assert.Equal(t, want, []byte(a.own[v.At:v.At+len(want)]))
			assert.Equal(t, v.Head, a.head)
			for offset, word := range v.Words {
				at, err := strconv.Atoi(offset)
				require.NoError(t, err)
				assert.Equal(t, word, a.own.word(at).Load())
			}
			for _, packet := range v.Packets {
				if packet != "" {
					assert.Equal(t, unhex(t, packet), take(t, b))
				}
			}
		})
	}
}

func unhex(t *testing.T, text string) []byte {
	t.Helper()
	data, err := hex.DecodeString(text)
	require.NoError(t, err)
	return data
}
