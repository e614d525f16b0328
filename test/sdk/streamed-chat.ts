import type OpenAI from 'openai';

/** One streamed chat with its usage chunk: how many words came, and how many tokens it says it took. */
export async function streamedChat(client: OpenAI): Promise<{ words: number; tokens: number }> {
  const stream = await client.chat.completions.create({
    model: 'gpt-4o',
    messages: [{ role: 'user', content: 'Where does water go?' }],
    stream: true,
    stream_options: { include_usage: true },
  });
  let text = '';
  let tokens = 0;
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta.content ?? '';
    tokens = chunk.usage?.total_tokens ?? tokens;
  }
  return { words: text.split(' ').length, tokens };
}
