// Checks recorded histories of three replicas against three models with porcupine. Reads a JSON array of histories from
// standard input and writes one line a history: its name and Ok, Illegal or Unknown (not decided in time).
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

const limit = 20 * time.Second

type operation struct {
	Kind   string `json:"kind"`
	Call   string `json:"call"`
	From   int64  `json:"from"`
	To     int64  `json:"to"`
	Client int    `json:"client"`
}

type history struct {
	Name       string      `json:"name"`
	Model      string      `json:"model"`
	Limit      int         `json:"limit"`
	Operations []operation `json:"operations"`
}

// How many slots of a ceiling are taken; and the calls that have tried and not returned yet, each with + (took a slot) or - and a comma.
type slots struct {
	taken int
	tried string
}

// A ceiling: so many calls are charged within its window, and nobody is refused before. A call that tried was not sent: it may have taken a
// slot, and then gives it back. A call whose end is unsure may have left its slot taken.
func ceiling(limit int) porcupine.Model {
	model := porcupine.NondeterministicModel{
		Init: func() []interface{} { return []interface{}{slots{}} },
		Step: func(state, input, _ interface{}) []interface{} {
			now, op := state.(slots), input.(operation)
			var next []interface{}
			add := func(taken int, tried string) {
				if taken <= limit {
					next = append(next, slots{taken, tried})
				}
			}
			switch op.Kind {
			case "charged":
				add(now.taken+1, now.tried)
			case "refused":
				if now.taken >= limit {
					add(now.taken, now.tried)
				}
			case "unsure":
				add(now.taken, now.tried)
				add(now.taken+1, now.tried)
			case "tried":
				add(now.taken, now.tried+op.Call+"-,")
				add(now.taken+1, now.tried+op.Call+"+,")
			case "returned":
				if rest, took := without(now.tried, op.Call+"+,"); took {
					add(now.taken-1, rest)
				} else if rest, tried := without(now.tried, op.Call+"-,"); tried {
					add(now.taken, rest)
				}
			}
			return next
		},
	}
	return model.ToModel()
}

func without(all, one string) (string, bool) {
	return strings.Replace(all, one, "", 1), strings.Contains(all, one)
}

// A lane: calls leave in the order in which they came. The state is the calls that wait, each ended by a comma.
//
// It is checked two calls at a time. Every call comes once and leaves once, and nobody finds the lane empty: such a queue is linearizable
// if and only if each two of its calls are (Henzinger, Sezgin, Vafeiadis: Aspect-Oriented Linearizability Proofs, 2013). All at once the
// orders of calls that came at about the same time are too many to try.
func lane() porcupine.Model {
	return porcupine.Model{
		Partition: func(all []porcupine.Operation) [][]porcupine.Operation {
			var calls []string
			ofCall := map[string][]porcupine.Operation{}
			for _, op := range all {
				call := op.Input.(operation).Call
				if ofCall[call] == nil {
					calls = append(calls, call)
				}
				ofCall[call] = append(ofCall[call], op)
			}
			var pairs [][]porcupine.Operation
			for n, one := range calls {
				for _, other := range calls[:n] {
					pairs = append(pairs, append(append([]porcupine.Operation{}, ofCall[one]...), ofCall[other]...))
				}
			}
			return pairs
		},
		Init: func() interface{} { return "" },
		Step: func(state, input, _ interface{}) (bool, interface{}) {
			waiting, op := state.(string), input.(operation)
			if op.Kind == "came" {
				return true, waiting + op.Call + ","
			}
			rest, isFirst := strings.CutPrefix(waiting, op.Call+",")
			return isFirst, rest
		},
	}
}

// Serialized calls: one is under way at a time. The state is that one, or empty.
func serial() porcupine.Model {
	return porcupine.Model{
		Init: func() interface{} { return "" },
		Step: func(state, input, _ interface{}) (bool, interface{}) {
			op := input.(operation)
			if op.Kind == "began" {
				return state == "", op.Call
			}
			return state == op.Call, ""
		},
	}
}

func modelOf(h history) porcupine.Model {
	switch h.Model {
	case "ceiling":
		return ceiling(h.Limit)
	case "lane":
		return lane()
	case "serial":
		return serial()
	}
	panic("no such model: " + h.Model)
}

func main() {
	var histories []history
	if err := json.NewDecoder(os.Stdin).Decode(&histories); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	for _, h := range histories {
		operations := make([]porcupine.Operation, 0, len(h.Operations))
		for _, op := range h.Operations {
			operations = append(operations, porcupine.Operation{
				ClientId: op.Client, Input: op, Call: op.From, Output: nil, Return: op.To,
			})
		}
		result := porcupine.CheckOperationsTimeout(modelOf(h), operations, limit)
		fmt.Printf("%s\t%s\n", h.Name, result)
	}
}
