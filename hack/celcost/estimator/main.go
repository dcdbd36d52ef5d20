// Command celcost prints what the CEL rules of CustomResourceDefinitions may cost by the estimate that an API server of
// its version makes when one is created (k/k: staging/src/k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation).
//
//	celcost FILE.json...    a JSON list on standard output: file, path of the rule, cost, limit, error
//
// The last entry of a file has the path "total". An API server refuses a CRD where a cost is above its limit.
package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
)

// Cost is that of one rule, or of all of a schema.
type Cost struct {
	File  string `json:"file"`
	Path  string `json:"path"`
	Cost  uint64 `json:"cost"`
	Limit uint64 `json:"limit"`
	Error string `json:"error,omitempty"`
}

type walk struct {
	file  string
	costs []Cost
	total uint64
}

func main() {
	var all []Cost
	for _, name := range os.Args[1:] {
		costs, err := of(name)
		if err != nil {
			fmt.Fprintf(os.Stderr, "celcost: %s: %v\n", name, err)
			os.Exit(1)
		}
		all = append(all, costs...)
	}
	if err := json.NewEncoder(os.Stdout).Encode(all); err != nil {
		fmt.Fprintf(os.Stderr, "celcost: %v\n", err)
		os.Exit(1)
	}
}

func of(name string) ([]Cost, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var crd apiextensionsv1.CustomResourceDefinition
	if err := json.Unmarshal(text, &crd); err != nil {
		return nil, err
	}
	w := walk{file: name}
	for _, version := range crd.Spec.Versions {
		if version.Schema == nil || version.Schema.OpenAPIV3Schema == nil {
			return nil, fmt.Errorf("version %s has no schema", version.Name)
		}
		var schema apiextensions.JSONSchemaProps
		from := version.Schema.OpenAPIV3Schema
		if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(from, &schema, nil); err != nil {
			return nil, err
		}
		if err := w.schema(&schema, version.Name, validation.RootCELContext(&schema)); err != nil {
			return nil, err
		}
	}
	w.costs = append(w.costs, Cost{name, "total", w.total, validation.StaticEstimatedCRDCostLimit, ""})
	return w.costs, nil
}

func (w *walk) schema(schema *apiextensions.JSONSchemaProps, path string, context *validation.CELSchemaContext) error {
	if schema == nil {
		return nil
	}
	if len(schema.XValidations) > 0 {
		if err := w.rules(path, context); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	for name := range schema.Properties {
		child := schema.Properties[name]
		if err := w.schema(&child, path+"."+name, context.ChildPropertyContext(&child, name)); err != nil {
			return err
		}
	}
	if schema.AdditionalProperties != nil && schema.AdditionalProperties.Schema != nil {
		child := schema.AdditionalProperties.Schema
		if err := w.schema(child, path+"{}", context.ChildAdditionalPropertiesContext(child)); err != nil {
			return err
		}
	}
	if schema.Items != nil && schema.Items.Schema != nil {
		child := schema.Items.Schema
		if err := w.schema(child, path+"[]", context.ChildItemsContext(child)); err != nil {
			return err
		}
	}
	return nil
}

func (w *walk) rules(path string, context *validation.CELSchemaContext) error {
	info, err := context.TypeInfo()
	if err != nil {
		return err
	}
	// The limit of a call only matters when a rule is evaluated.
	results, err := cel.Compile(info.Schema, info.DeclType, math.MaxUint64, environmentOfNewRules(), cel.NewExpressionsEnvLoader())
	if err != nil {
		return err
	}
	for number, result := range results {
		cost := Cost{w.file, fmt.Sprintf("%s rule %d", path, number), 0, validation.StaticEstimatedCostLimit, ""}
		if result.Error != nil {
			cost.Error = result.Error.Error()
		}
		times := result.MaxCardinality
		if context.MaxCardinality != nil {
			times = *context.MaxCardinality
		}
		cost.Cost = multiplied(result.MaxCost, times)
		w.total += min(cost.Cost, math.MaxUint64-w.total)
		w.costs = append(w.costs, cost)
	}
	return nil
}

func multiplied(cost, times uint64) uint64 {
	if cost == 0 {
		return 0
	}
	if times > math.MaxUint64/cost {
		return math.MaxUint64
	}
	return cost * times
}
