// The npm package `ollama`: `node ollama_peer.mjs URL FOLDER_OF_NODE_MODULES`.
import assert from 'node:assert/strict'
import { createRequire } from 'node:module'

const [url, modules] = process.argv.slice(2)
const { Ollama } = createRequire(`${modules}/`)('ollama')
const client = new Ollama({ host: url })
const user = (content) => [{ role: 'user', content }]
const options = { temperature: 0 }
const weather = {
  type: 'function',
  function: {
    name: 'get_weather',
    description: 'Current weather of a city',
    parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
  },
}

const whole = await client.chat({ model: 'thinker', messages: user('What is 2 + 2?'), options, think: true })
assert.equal(whole.message.content, '2 + 2 = 4')
assert.equal(whole.message.thinking.trim(), 'Two and two make four.')
assert.ok(whole.eval_count > 5 && whole.eval_duration > 0 && whole.done_reason === 'stop')

let text = ''
let last
for await (const part of await client.chat({ model: 'thinker', messages: user('Count to ten.'), stream: true, options })) {
  text += part.message.content
  last = part
}
assert.equal(text, '1, 2, 3, 4, 5, 6, 7, 8, 9, 10.')
assert.ok(last.done)

const called = await client.chat({ model: 'thinker', messages: user('What is the weather in Paris?'), tools: [weather], options })
assert.deepEqual(called.message.tool_calls[0].function.arguments, { city: 'Paris' })
const told = [...user('What is the weather in Paris?'), called.message,
  { role: 'tool', tool_name: 'get_weather', content: '18 degrees, cloudy' }]
const answer = await client.chat({ model: 'thinker', messages: told, tools: [weather], options })
assert.equal(answer.message.content, 'It is 18 degrees and cloudy in Paris.')

const format = { type: 'object', properties: { name: { type: 'string' }, age: { type: 'integer' } }, required: ['name', 'age'] }
const person = await client.generate({ model: 'thinker', prompt: 'Give me a person as JSON.', format, options, think: false })
assert.deepEqual(JSON.parse(person.response), { name: 'Ada', age: 36 })
assert.ok(person.context.length > 5)

assert.equal((await client.embed({ model: 'embedder', input: ['hello', 'world'] })).embeddings.length, 2)
assert.equal((await client.embeddings({ model: 'embedder', prompt: 'hello' })).embedding.length, 32)

assert.ok((await client.list()).models.some((model) => model.name === 'thinker:latest'))
assert.ok((await client.ps()).models.some((model) => model.name === 'thinker:latest'))
const shown = await client.show({ model: 'thinker' })
assert.deepEqual([...shown.capabilities].sort(), ['completion', 'thinking', 'tools'])
assert.equal(shown.model_info['qwen3.context_length'], 4096)
assert.match((await client.version()).version, /^\d+\.\d+\.\d+$/)

const steps = []
for await (const step of await client.create({ model: 'js-made', from: 'plain', system: 'Be brief.', stream: true })) steps.push(step.status)
assert.equal(steps.at(-1), 'success')
assert.equal((await client.show({ model: 'js-made' })).system, 'Be brief.')
assert.equal((await client.copy({ source: 'js-made', destination: 'js-copy' })).status, 'success')
for (const model of ['js-made', 'js-copy']) assert.equal((await client.delete({ model })).status, 'success')
const pulled = []
for await (const step of await client.pull({ model: 'remote', stream: true })) pulled.push(step)
assert.equal(pulled.at(-1).status, 'success')
assert.equal((await client.pull({ model: 'remote' })).status, 'success')

const fails = async (work, status, words) => {
  await assert.rejects(work, (error) => {
    assert.match(error.message, words)
    if (status) assert.equal(error.status_code, status)
    return true
  })
}
await fails(client.chat({ model: 'nope', messages: user('Hello') }), 404, /model 'nope' not found/)
await fails(client.show({ model: 'nope' }), 404, /not found/)
await fails(client.chat({ model: 'plain', messages: user('Hello'), think: true }), 400, /does not support thinking/)
await fails(client.chat({ model: 'plain', messages: user('Hello'), tools: [weather] }), 400, /does not support tools/)
await fails((async () => { for await (const _ of await client.pull({ model: 'nope', stream: true })); })(), 0, /file does not exist/)

const endless = await client.generate({ model: 'thinker', prompt: 'Tell me a story.', stream: true, options })
setTimeout(() => endless.abort(), 20)
await assert.rejects(async () => { for await (const _ of endless) await new Promise((go) => setTimeout(go, 10)) }, { name: 'AbortError' })
assert.equal((await client.generate({ model: 'thinker', prompt: 'Hello', options })).response, 'Hello! How can I help you today?')
console.log('ok')
