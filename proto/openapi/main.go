// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

// Command openapi is a protoc plugin that writes the OpenAPI 3.1 description
// of services as the Connect protocol serves them in JSON: a POST for each
// call, messages in the JSON form of protocol buffers. Comments of the .proto
// files become descriptions.
//
// Sources: connectrpc.com/docs/protocol; protobuf.dev/programming-guides/json.
package main

import (
	"bytes"
	"encoding/json"
	"path"
	"slices"
	"strings"

	"google.golang.org/protobuf/compiler/protogen"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/pluginpb"
)

func main() {
	protogen.Options{}.Run(func(p *protogen.Plugin) error {
		p.SupportedFeatures = uint64(pluginpb.CodeGeneratorResponse_FEATURE_PROTO3_OPTIONAL)
		byPackage := map[protoreflect.FullName][]*protogen.File{}
		for _, f := range p.Files {
			if f.Generate {
				byPackage[f.Desc.Package()] = append(byPackage[f.Desc.Package()], f)
			}
		}
		for name, files := range byPackage {
			out, err := document(name, files)
			if err != nil {
				return err
			}
			g := p.NewGeneratedFile(path.Join(path.Dir(files[0].Desc.Path()), "openapi.json"), "")
			if _, err := g.Write(out); err != nil {
				return err
			}
		}
		return nil
	})
}

// object is a JSON object; encoding/json sorts its members.
type object = map[string]any

// generator collects the schemas that operations refer to.
type generator struct {
	pkg     protoreflect.FullName
	schemas object
}

func document(name protoreflect.FullName, files []*protogen.File) ([]byte, error) {
	g := &generator{pkg: name, schemas: object{
		"connect.Error": object{
			"type": "object", "description": "What went wrong. A detail of the type google.rpc.ErrorInfo has the reason, in capitals, and in its metadata under next_step what to do.",
			"properties": object{
				"code": object{"type": "string", "enum": []string{
					"canceled", "unknown", "invalid_argument", "deadline_exceeded", "not_found", "already_exists", "permission_denied",
					"resource_exhausted", "failed_precondition", "aborted", "out_of_range", "unimplemented", "internal", "unavailable", "data_loss", "unauthenticated",
				}},
				"message": object{"type": "string"},
				"details": object{"type": "array", "items": object{
					"type": "object", "properties": object{
						"type":  object{"type": "string", "description": "The full name of the detail's message type."},
						"value": object{"type": "string", "description": "The message, in unpadded base64."},
						"debug": object{"description": "The message in JSON, for people."},
					}, "required": []string{"type", "value"},
				}},
			}, "required": []string{"code"},
		},
	}}
	paths, tags := object{}, []object{}
	for _, f := range files {
		for _, s := range f.Services {
			tags = append(tags, object{"name": string(s.Desc.Name()), "description": comment(s.Comments)})
			for _, m := range s.Methods {
				paths["/"+string(s.Desc.FullName())+"/"+string(m.Desc.Name())] = object{"post": g.operation(s, m)}
			}
		}
	}
	slices.SortFunc(tags, func(a, b object) int { return strings.Compare(a["name"].(string), b["name"].(string)) })
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	err := e.Encode(object{
		"openapi": "3.1.0",
		"info": object{
			"title": "Sluice administration", "version": string(name[strings.LastIndex(string(name), ".")+1:]),
			"description": "Organisations, shares, recipients, grants, policies and audit. The same calls are served as gRPC and gRPC-Web.",
			"license":     object{"name": "Apache-2.0", "identifier": "Apache-2.0"},
		},
		"tags": tags, "paths": paths,
		"components": object{
			"schemas":         g.schemas,
			"securitySchemes": object{"bearer": object{"type": "http", "scheme": "bearer"}},
		},
		"security": []object{{"bearer": []string{}}},
	})
	return b.Bytes(), err
}

func (g *generator) operation(s *protogen.Service, m *protogen.Method) object {
	kind, description := "application/json", comment(m.Comments)
	if m.Desc.IsStreamingServer() || m.Desc.IsStreamingClient() {
		kind = "application/connect+json"
		description += "\n\nA stream: each message follows a byte of flags and its length in four bytes, most significant first; the message with flag 2 is the last and tells how it ended."
	}
	return object{
		"operationId": string(s.Desc.Name()) + "_" + string(m.Desc.Name()),
		"tags":        []string{string(s.Desc.Name())},
		"description": description,
		"parameters": []object{{
			"name": "Connect-Protocol-Version", "in": "header", "schema": object{"const": "1"},
		}},
		"requestBody": object{"required": true, "content": object{kind: object{"schema": g.message(m.Input)}}},
		"responses": object{
			"200":     object{"description": "Done.", "content": object{kind: object{"schema": g.message(m.Output)}}},
			"default": object{"description": "Refused or failed.", "content": object{"application/json": object{"schema": ref("connect.Error")}}},
		},
	}
}

func ref(name string) object { return object{"$ref": "#/components/schemas/" + name} }

// message refers to a message's schema, and writes it when it is the first.
func (g *generator) message(m *protogen.Message) object {
	switch m.Desc.FullName() {
	case "google.protobuf.Timestamp":
		return object{"type": "string", "format": "date-time"}
	case "google.protobuf.Duration":
		return object{"type": "string", "pattern": `^-?[0-9]+(\.[0-9]{1,9})?s$`, "examples": []string{"3600s"}}
	case "google.protobuf.FieldMask":
		return object{"type": "string", "description": "Names of fields in lowerCamelCase, with commas between."}
	case "google.protobuf.Struct":
		return object{"type": "object", "additionalProperties": true}
	}
	name := strings.TrimPrefix(string(m.Desc.FullName()), string(g.pkg)+".")
	if g.schemas[name] != nil {
		return ref(name)
	}
	properties := object{}
	schema := object{"type": "object", "description": comment(m.Comments), "properties": properties, "additionalProperties": false}
	g.schemas[name] = schema
	required, exclusive := []string{}, map[string][]string{}
	for _, f := range m.Fields {
		property := g.field(f)
		text := comment(f.Comments)
		if one := f.Desc.ContainingOneof(); one != nil && !one.IsSynthetic() {
			exclusive[string(one.Name())] = append(exclusive[string(one.Name())], f.Desc.JSONName())
		}
		if strings.HasPrefix(text, "Required.") {
			required = append(required, f.Desc.JSONName())
		}
		if text != "" {
			property["description"] = text
		}
		properties[f.Desc.JSONName()] = property
	}
	if len(required) > 0 {
		schema["required"] = required
	}
	for _, names := range exclusive {
		schema["description"] = schema["description"].(string) + "\n\nAt most one of " + strings.Join(names, ", ") + "."
	}
	return ref(name)
}

func (g *generator) field(f *protogen.Field) object {
	switch {
	case f.Desc.IsMap():
		return object{"type": "object", "additionalProperties": g.single(f.Message.Fields[1])}
	case f.Desc.IsList():
		return object{"type": "array", "items": g.single(f)}
	}
	return g.single(f)
}

func (g *generator) single(f *protogen.Field) object {
	switch f.Desc.Kind() {
	case protoreflect.BoolKind:
		return object{"type": "boolean"}
	case protoreflect.StringKind:
		return object{"type": "string"}
	case protoreflect.BytesKind:
		return object{"type": "string", "format": "byte"}
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		return object{"type": []string{"number", "string"}}
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind, protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return object{"type": []string{"string", "integer"}, "format": "int64"}
	case protoreflect.EnumKind:
		return g.enum(f.Enum)
	case protoreflect.MessageKind, protoreflect.GroupKind:
		return g.message(f.Message)
	}
	return object{"type": "integer", "format": "int32"}
}

func (g *generator) enum(e *protogen.Enum) object {
	name := strings.TrimPrefix(string(e.Desc.FullName()), string(g.pkg)+".")
	if g.schemas[name] == nil {
		var names, lines []string
		for _, v := range e.Values {
			names = append(names, string(v.Desc.Name()))
			lines = append(lines, string(v.Desc.Name())+": "+comment(v.Comments))
		}
		g.schemas[name] = object{"type": "string", "enum": names, "description": comment(e.Comments) + "\n\n" + strings.Join(lines, "\n")}
	}
	return ref(name)
}

// comment joins the lines of a paragraph.
func comment(c protogen.CommentSet) string {
	var out []string
	for paragraph := range strings.SplitSeq(strings.TrimSpace(string(c.Leading)), "\n\n") {
		out = append(out, strings.Join(strings.Fields(paragraph), " "))
	}
	return strings.Join(out, "\n\n")
}
