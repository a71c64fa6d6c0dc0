// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package admin

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// strictJSON is the JSON form of protocol buffers in which an unknown field is
// an error: a misspelt condition of a grant must not be left out in silence.
type strictJSON struct{ name string }

// Name is the part of the content type.
func (c strictJSON) Name() string { return c.name }

var errNoMessage = errors.New("not a protocol buffer")

// Marshal encodes a message.
func (strictJSON) Marshal(v any) ([]byte, error) {
	m, ok := v.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("%w: %T", errNoMessage, v)
	}
	return protojson.Marshal(m)
}

// Unmarshal decodes a message.
func (strictJSON) Unmarshal(data []byte, v any) error {
	m, ok := v.(proto.Message)
	if !ok {
		return fmt.Errorf("%w: %T", errNoMessage, v)
	}
	if len(data) == 0 {
		return errors.New("the body is empty: send {} for a request without fields")
	}
	return protojson.Unmarshal(data, m)
}
