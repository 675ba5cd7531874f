// Weights answers GET /NAME with the newest version of the model that is
// published as NAME, as a safetensors file, straight from its memory:
//
//	go run ./examples/weights &
//	curl -o llama.safetensors http://127.0.0.1:8000/llama
//
// A client that sends the ETag of its file again (curl --etag-compare) gets
// the model only if there is a newer version.
package main

import (
	"errors"
	"flag"
	"fmt"
	"log"
	"net/http"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/bridge/safetensors"
)

func main() {
	address := flag.String("listen", "127.0.0.1:8000", "where to listen")
	flag.Parse()
	log.Fatal(http.ListenAndServe(*address, handler(bridge.DefaultSocket())))
}

func handler(socket string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{name}", func(w http.ResponseWriter, r *http.Request) {
		if err := answer(w, r, socket); err != nil {
			code := http.StatusInternalServerError
			if errors.Is(err, bridge.ErrNotFound) {
				code = http.StatusNotFound
			}
			http.Error(w, err.Error(), code)
		}
	})
	return mux
}

func answer(w http.ResponseWriter, r *http.Request, socket string) error {
	client, err := bridge.Dial(r.Context(), socket)
	if err != nil {
		return err
	}
	defer client.Close() // which also releases the lease
	model, err := client.TryGet(r.Context(), r.PathValue("name"), bridge.LeaseOptions{})
	if err != nil {
		return err
	}
	grant := model.Grant()
	tag := fmt.Sprintf(`"%s-%d-%d"`, client.Epoch(), grant.Buffer, grant.Generation)
	w.Header().Set("ETag", tag)
	if r.Header.Get("If-None-Match") == tag {
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	// A program that publishes another version does not change this one.
	err = safetensors.Write(r.Context(), model, w)
	if err != nil && !errors.Is(err, bridge.ErrInvalid) {
		panic(http.ErrAbortHandler) // the client sees that its file is cut
	}
	return err // nothing was written if the model fits into no file
}
